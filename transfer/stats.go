package transfer

import (
	"sync"
	"sync/atomic"
)

// PathStats is what batches of an engine have had carried by one path.
type PathStats struct {
	Path  Path // PathNone: nothing was carried
	Bytes int64
	// Tasks are those that ended, by the path of their last bytes and by their final status.
	Tasks map[Status]int64
}

// carried counts what batches have had carried.
type carried struct {
	fallbacks, reconnects atomic.Int64

	mu    sync.Mutex
	bytes [paths]int64
	tasks [paths][len(statusNames)]int64
}

// add counts a batch that is over.
func (c *carried) add(results []TaskResult, bytes *[paths]int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for p, n := range bytes {
		c.bytes[p] += n
	}
	for i := range results {
		c.tasks[results[i].Path][results[i].Status]++
	}
}

// stats returns what there was, for the paths that there are.
func (c *carried) stats() []PathStats {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := make([]PathStats, 0, paths)
	for p := range paths {
		s := PathStats{Path: p, Bytes: c.bytes[p], Tasks: make(map[Status]int64)}
		for _, status := range []Status{StatusCompleted, StatusFailed, StatusCanceled, StatusTimeout} {
			s.Tasks[status] = c.tasks[p][status]
		}
		all = append(all, s)
	}
	return all
}
