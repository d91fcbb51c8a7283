package copy

import (
	"sync"

	"github.com/kvlane/kvlane/stream"
	"github.com/kvlane/kvlane/stream/copy/move"
	"github.com/kvlane/kvlane/stream/copy/plan"
)

// item is a step in flight.
type item struct {
	move.Step
	op   *op
	last bool // it is the last step of op
	// groups is the number of page groups that are completed with this step, if the batch requests
	// reports.
	groups    int
	unordered bool // the device does not order the step relative to the stream's queue
}

// unorderedPaths are the paths whose work the device does not order relative to the stream's queue.
// The host orders it.
const unorderedPaths plan.Paths = 1<<stream.PathNIC | 1<<stream.PathNICSoft

func isUnordered(p stream.Path) bool { return unorderedPaths.Has(p) }

// stepQueue holds the steps in flight, in order. move.InFlight and the stream's depth bound it. It
// is safe for concurrent use, but only one goroutine at a time may pop.
type stepQueue struct {
	mu            sync.Mutex
	items         []item // a ring
	first         int
	n             int
	calls         int // device calls whose events are not done
	unordered     int // number of unordered items, which all have unorderedPath
	unorderedPath stream.Path
}

// admits returns the work in flight, and reports whether a step on path may be issued after it.
// Unordered steps and other steps, or unordered steps of different paths, are never in flight
// together.
func (f *stepQueue) admits(path stream.Path) (now move.InFlight, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if ok = f.unordered == 0; isUnordered(path) {
		ok = f.n == 0 || f.unordered == f.n && f.unorderedPath == path
	}
	return move.InFlight{Steps: f.n, Calls: f.calls}, ok
}

// push appends a step and reports whether it is the only one.
func (f *stepQueue) push(it *item) (only bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.n == len(f.items) {
		more := make([]item, max(2*f.n, 16))
		copy(more[copy(more, f.items[f.first:]):], f.items[:f.first])
		f.items, f.first = more, 0
	}
	f.items[(f.first+f.n)%len(f.items)] = *it
	f.n++
	f.calls += it.Calls
	if it.unordered {
		f.unordered++
		f.unorderedPath = it.op.choice.Path
	}
	return f.n == 1
}

// peek returns the first step, or nil. The result is valid until the step is popped.
func (f *stepQueue) peek() *item {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.head()
}

// pop removes the first step and returns the next, or nil.
func (f *stepQueue) pop() *item {
	f.mu.Lock()
	defer f.mu.Unlock()
	it := f.head()
	f.calls -= it.Calls
	if it.unordered {
		f.unordered--
	}
	*it = item{}
	f.first = (f.first + 1) % len(f.items)
	f.n--
	return f.head()
}

func (f *stepQueue) head() *item {
	if f.n == 0 {
		return nil
	}
	return &f.items[f.first]
}
