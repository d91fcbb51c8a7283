package transfer

import (
	"sync"
	"sync/atomic"
)

// PathStats are the statistics of one path.
type PathStats struct {
	Path  Path // PathNone: tasks that moved no bytes
	Bytes int64
	// Tasks counts finished tasks by final status. A task counts for the path of its last bytes.
	Tasks map[Status]int64
}

// carried counts the bytes and tasks of batches.
type carried struct {
	fallbacks, reconnects atomic.Int64

	mu    sync.Mutex
	bytes [paths]int64
	tasks [paths][len(statusNames)]int64
}

// add counts a resolved batch.
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

// stats returns the statistics of all paths.
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
