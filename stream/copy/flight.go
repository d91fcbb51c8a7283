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
	// groups is how many page groups of the batch have landed when the step has, where somebody wants to know.
	groups int
	apart  bool // the device keeps no order between it and the stream's queue
}

// apartPaths are those between which and the stream's queue the device keeps no order, so that the host has to.
const apartPaths plan.Paths = 1<<stream.PathNIC | 1<<stream.PathNICSoft

func isApart(p stream.Path) bool { return apartPaths.Has(p) }

// flight is what was issued and is not completed, in order. At most as many items as move.Flight and the stream's places admit.
// Safe for concurrent use; one goroutine at a time pops.
type flight struct {
	mu      sync.Mutex
	items   []item // a ring
	first   int
	n       int
	calls   int         // device calls whose event is not done
	apart   int         // items that are, all of path apartBy
	apartBy stream.Path // of the last
}

// admits reports whether what travels by path may be issued behind what is in flight, and how much that is. What is apart
// follows only what travels by the same path, and is followed by nothing else.
func (f *flight) admits(path stream.Path) (now move.Flight, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if ok = f.apart == 0; isApart(path) {
		ok = f.n == 0 || f.apart == f.n && f.apartBy == path
	}
	return move.Flight{Steps: f.n, Calls: f.calls}, ok
}

// push appends it, and reports whether it is the only item.
func (f *flight) push(it *item) (only bool) {
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
	if it.apart {
		f.apart++
		f.apartBy = it.op.choice.Path
	}
	return f.n == 1
}

// peek returns the first item, which stays, or nil. It is valid until it is popped.
func (f *flight) peek() *item {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.head()
}

// pop takes the first item off, and returns the next.
func (f *flight) pop() *item {
	f.mu.Lock()
	defer f.mu.Unlock()
	it := f.head()
	f.calls -= it.Calls
	if it.apart {
		f.apart--
	}
	*it = item{}
	f.first = (f.first + 1) % len(f.items)
	f.n--
	return f.head()
}

func (f *flight) head() *item {
	if f.n == 0 {
		return nil
	}
	return &f.items[f.first]
}
