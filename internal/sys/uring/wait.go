package uring

import (
	"fmt"
	"sync/atomic"
	"syscall"

	"github.com/kvlane/kvlane/errdefs"
)

// Completion is what became of a request.
type Completion struct {
	Op Op
	// N is how many bytes were moved. Fewer than asked for is no error here: a read at the end of a file is one.
	N   int
	Err error // an *OpError
}

// Wait returns completions, at least one and at most len(out), in the order in which requests ended. It blocks until there is one, and
// where nothing is in flight until something is submitted. One goroutine waits at a time, the others for their turn. Errors: ErrClosed
// once the ring is closed; ErrBroken once it takes no more and nothing is in flight, or where it cannot be waited for: the memory of what
// is in flight must not be used then, and another Wait may find that it has ended; ErrInvalid for an empty out.
func (r *Ring) Wait(out []Completion) (int, error) {
	if len(out) == 0 {
		return 0, fmt.Errorf("wait for io_uring: no room for a completion: %w", errdefs.ErrInvalid)
	}
	r.waiting.Lock()
	defer r.waiting.Unlock()
	r.mu.Lock()
	for r.inFlight <= 0 && !r.closed && r.broken == nil {
		r.changed.Wait()
	}
	var err error
	switch {
	case r.closed:
		err = errdefs.ErrClosed
	case r.inFlight <= 0:
		err = r.broken // what a broken ring has in flight ends as any other
	}
	r.mu.Unlock()
	if err != nil {
		return 0, fmt.Errorf("wait for io_uring: %w", err)
	}
	return r.reap(out)
}

// reap takes completions out of the queue, at least one. Something must be in flight.
func (r *Ring) reap(out []Completion) (int, error) {
	for {
		if n, err := r.collect(out); n > 0 || err != nil {
			return n, err
		}
		if err := r.lost(); err != nil {
			return 0, err
		}
		// The kernel also moves completions here that did not fit into the queue. EAGAIN and EBUSY ask for patience, and
		// what is in flight ends whatever they say.
		_, errno := r.api.Enter(r.fd, 0, 1, enterGetEvents)
		switch errno {
		case 0, syscall.EINTR, syscall.EAGAIN, syscall.EBUSY:
		default:
			return 0, r.breaks("io_uring_enter", errno)
		}
	}
}

// collect takes the completions that are there.
func (r *Ring) collect(out []Completion) (n int, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	head, tail := atomic.LoadUint32(r.cqHead), atomic.LoadUint32(r.cqTail)
	for ; n < len(out) && head != tail; n++ {
		c := r.cq[head&r.cqMask]
		head++
		if c.userData >= uint64(len(r.slots)) {
			r.broken = fmt.Errorf("io_uring completed a request %d that is not one: %w", c.userData, errdefs.ErrBroken)
			err = r.broken
			break
		}
		op := &r.slots[c.userData]
		out[n] = Completion{Op: *op, N: int(max(c.res, 0))}
		if c.res < 0 {
			out[n].Err = &OpError{Op: op.Code, FD: op.FD, Off: op.Off, Len: int64(len(op.Buf)), Errno: syscall.Errno(-c.res)}
		}
		*op = Op{}
		r.free = append(r.free, uint32(c.userData))
		r.inFlight--
	}
	// The entries were read before the kernel may write them again.
	atomic.StoreUint32(r.cqHead, head)
	if n > 0 {
		return n, nil
	}
	return 0, err
}
