package soft

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/leak"
	"github.com/kvlane/kvlane/rdma"
)

// owner is the common state of objects. An object is open until close succeeds. It cannot be closed
// while it has children.
type owner struct {
	what   string // "protection domain"
	closed atomic.Bool

	mu       sync.Mutex
	children int
}

// open marks the object as open.
func (o *owner) open(what string) {
	o.what = what
	leak.Add(leak.Handles, 1)
}

// check returns ErrClosed if the object is closed.
func (o *owner) check(call string) error {
	if o.closed.Load() {
		return &rdma.Error{Call: call, Text: "the " + o.what + " is closed", Kind: errdefs.ErrClosed}
	}
	return nil
}

// adopt adds a child.
func (o *owner) adopt(call string) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if err := o.check(call); err != nil {
		return err
	}
	o.children++
	return nil
}

// removeChild removes a child.
func (o *owner) removeChild() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.children--
}

// close closes the object and reports whether it was open. It returns ErrBusy while the object has
// children.
func (o *owner) close(call string) (bool, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed.Load() {
		return false, nil
	}
	if o.children > 0 {
		return false, rdma.NewError(call, "", unix.EBUSY, fmt.Sprintf("%d objects on the %s are open", o.children, o.what))
	}
	o.closed.Store(true)
	leak.Add(leak.Handles, -1)
	return true, nil
}

// opCounter counts operations in progress. It can be stopped, so that new operations are refused.
type opCounter struct {
	word atomic.Int64 // number of operations, plus stopBit if stopped
	idle chan struct{}
}

const stopBit = 1 << 62

func newGate() *opCounter { return &opCounter{idle: make(chan struct{}, 1)} }

// begin counts an operation. It returns false if the counter is stopped. Otherwise the caller must
// call end.
func (g *opCounter) begin() bool {
	if g.word.Add(1)&stopBit != 0 {
		g.end()
		return false
	}
	return true
}

func (g *opCounter) end() {
	if g.word.Add(-1) == stopBit {
		select {
		case g.idle <- struct{}{}:
		default:
		}
	}
}

// stop refuses new operations and waits for those in progress. If that takes longer than the drain
// timeout, it permits operations again and returns ErrBusy. It is not safe for concurrent use.
func (g *opCounter) stop(call string, p *Provider) error {
	if g.word.Add(stopBit) == stopBit {
		return nil
	}
	if p.manual() {
		// With a manual schedule, operations end only in Step.
		for g.word.Load() != stopBit && p.Step() {
		}
	}
	d := p.o.DrainTimeout
	timer := time.NewTimer(d)
	defer timer.Stop()
	for g.word.Load() != stopBit {
		select {
		case <-g.idle:
		case <-timer.C:
			if g.word.Load() == stopBit {
				return nil
			}
			g.word.Add(-stopBit)
			return rdma.NewError(call, "", unix.EBUSY, fmt.Sprintf("transfers are still moving bytes after %v", d))
		}
	}
	return nil
}

// reopen permits operations again after stop.
func (g *opCounter) reopen() { g.word.Add(-stopBit) }

// quota limits the number of objects of a kind.
type quota struct{ n atomic.Int64 }

func (q *quota) take(call string, most int) error {
	if n := q.n.Add(1); n > int64(most) {
		q.n.Add(-1)
		return rdma.NewError(call, "", unix.ENOMEM, fmt.Sprintf("the device allows at most %d", most))
	}
	return nil
}

func (q *quota) giveBack() { q.n.Add(-1) }
