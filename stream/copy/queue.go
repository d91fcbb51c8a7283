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
	last bool // nothing of op follows
	// groups is the number of page groups completed with this step, if the batch has reports.
	groups    int
	unordered bool // the device does not order it with the stream's queue
}

// unorderedPaths are the paths that the device does not order with the stream's queue. The host
// orders them.
const unorderedPaths plan.Paths = 1<<stream.PathNIC | 1<<stream.PathNICSoft

func isUnordered(p stream.Path) bool { return unorderedPaths.Has(p) }

// stepQueue has the steps in flight, in order. move.InFlight and the stream's depth bound it. Safe
// for concurrent use. One goroutine at a time pops.
type stepQueue struct {
	mu            sync.Mutex
	items         []item // a ring
	first         int
	n             int
	calls         int // device calls whose event is not done
	unordered     int // number of unordered items, all of path unorderedPath
	unorderedPath stream.Path
}

// admits returns the work in flight, and reports whether a step by path may be issued behind it.
// Unordered steps only follow steps of the same path, and only those follow them.
func (f *stepQueue) admits(path stream.Path) (now move.InFlight, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if ok = f.unordered == 0; isUnordered(path) {
		ok = f.n == 0 || f.unordered == f.n && f.unorderedPath == path
	}
	return move.InFlight{Steps: f.n, Calls: f.calls}, ok
}

// push appends it and reports whether it is the only step.
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

// peek returns the first step, or nil. It is valid until it is popped.
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
