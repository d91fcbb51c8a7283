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

// owner is the life of an object: open until it is closed, which it cannot be while it has children.
type owner struct {
	what   string // "protection domain"
	closed atomic.Bool

	mu       sync.Mutex
	children int
}

// open starts the life.
func (o *owner) open(what string) {
	o.what = what
	leak.Add(leak.Handles, 1)
}

// check returns ErrClosed where the object is closed.
func (o *owner) check(call string) error {
	if o.closed.Load() {
		return &rdma.Error{Call: call, Text: "the " + o.what + " is closed", Kind: errdefs.ErrClosed}
	}
	return nil
}

// adopt counts a child.
func (o *owner) adopt(call string) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if err := o.check(call); err != nil {
		return err
	}
	o.children++
	return nil
}

// disown forgets a child.
func (o *owner) disown() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.children--
}

// close ends the life and reports whether it was this call that did.
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

// gate counts those who are inside, and can be shut so that nobody enters any more.
type opCounter struct {
	word atomic.Int64 // number of those inside, plus shutBit
	idle chan struct{}
}

const stopBit = 1 << 62

func newGate() *opCounter { return &opCounter{idle: make(chan struct{}, 1)} }

// enter reports whether the gate was open; then leave must follow.
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

// shut lets nobody in any more and waits until nobody is inside; ErrBusy, with the gate open again, where that takes too
// long. One user at a time.
func (g *opCounter) stop(call string, p *Provider) error {
	if g.word.Add(stopBit) == stopBit {
		return nil
	}
	if p.manual() {
		// Nobody else lets those inside out.
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

// reopen opens a gate that shut has shut.
func (g *opCounter) reopen() { g.word.Add(-stopBit) }

// quota counts objects of which a device has no more than so many.
type quota struct{ n atomic.Int64 }

func (q *quota) take(call string, most int) error {
	if n := q.n.Add(1); n > int64(most) {
		q.n.Add(-1)
		return rdma.NewError(call, "", unix.ENOMEM, fmt.Sprintf("the device has %d at most", most))
	}
	return nil
}

func (q *quota) giveBack() { q.n.Add(-1) }
