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

// owner is the state of an object: it is open until close succeeds, which needs that it has no
// children.
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

// close closes the object and reports whether it was open.
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

// opCounter counts operations in progress and can refuse new ones.
type opCounter struct {
	word atomic.Int64 // number of operations, plus stopBit
	idle chan struct{}
}

const stopBit = 1 << 62

func newGate() *opCounter { return &opCounter{idle: make(chan struct{}, 1)} }

// begin counts an operation and reports true, unless the counter is stopped. The caller must call
// end.
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

// stop refuses new operations and waits for those in progress. If that takes too long, it permits
// operations again and returns ErrBusy. It is not safe for concurrent use.
func (g *opCounter) stop(call string, p *Provider) error {
	if g.word.Add(stopBit) == stopBit {
		return nil
	}
	if p.manual() {
		// A manual provider ends operations only in Step.
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

// reopen undoes stop.
func (g *opCounter) reopen() { g.word.Add(-stopBit) }

// quota counts objects up to a limit of the device.
type quota struct{ n atomic.Int64 }

func (q *quota) take(call string, most int) error {
	if n := q.n.Add(1); n > int64(most) {
		q.n.Add(-1)
		return rdma.NewError(call, "", unix.ENOMEM, fmt.Sprintf("the device allows at most %d", most))
	}
	return nil
}

func (q *quota) giveBack() { q.n.Add(-1) }
