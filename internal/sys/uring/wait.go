package uring

import (
	"fmt"
	"sync/atomic"
	"syscall"

	"github.com/kvlane/kvlane/errdefs"
)

// Completion is the result of a request.
type Completion struct {
	Op Op
	// N is the number of transferred bytes. It may be less than requested, for example at the end
	// of a file; this is not an error.
	N   int
	Err error // an *OpError
}

// Wait returns at least one and at most len(out) completions, in the order in which requests ended.
// It blocks until a completion is available, even if nothing is in flight. If several goroutines
// call it, only one waits at a time. It returns ErrClosed after Close, and ErrInvalid for an empty
// out. It returns ErrBroken if it cannot wait, or if the ring is broken and nothing is in flight.
// In the first case, the memory of requests in flight must not be used; a later Wait may still
// return their completions.
func (r *Ring) Wait(out []Completion) (int, error) {
	if len(out) == 0 {
		return 0, fmt.Errorf("wait for io_uring: no space for a completion: %w", errdefs.ErrInvalid)
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
		err = r.broken // requests in flight of a broken ring still complete
	}
	r.mu.Unlock()
	if err != nil {
		return 0, fmt.Errorf("wait for io_uring: %w", err)
	}
	return r.reap(out)
}

// reap removes at least one completion from the queue. A request must be in flight.
func (r *Ring) reap(out []Completion) (int, error) {
	for {
		if n, err := r.collect(out); n > 0 || err != nil {
			return n, err
		}
		if err := r.lost(); err != nil {
			return 0, err
		}
		// The call also moves completions into the queue that did not fit before. EAGAIN and EBUSY
		// are temporary, and requests in flight complete even after such an error.
		_, errno := r.api.Enter(r.fd, 0, 1, enterGetEvents)
		switch errno {
		case 0, syscall.EINTR, syscall.EAGAIN, syscall.EBUSY:
		default:
			return 0, r.breaks("io_uring_enter", errno)
		}
	}
}

// collect removes the available completions from the queue.
func (r *Ring) collect(out []Completion) (n int, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	head, tail := atomic.LoadUint32(r.cqHead), atomic.LoadUint32(r.cqTail)
	for ; n < len(out) && head != tail; n++ {
		c := r.cq[head&r.cqMask]
		head++
		if c.userData >= uint64(len(r.slots)) {
			r.broken = fmt.Errorf("io_uring completed the unknown request %d: %w", c.userData, errdefs.ErrBroken)
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
	// After this store the kernel may overwrite the entries.
	atomic.StoreUint32(r.cqHead, head)
	if n > 0 {
		return n, nil
	}
	return 0, err
}
