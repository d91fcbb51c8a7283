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
	// N is the number of moved bytes. A smaller number than requested is no error, for example at
	// the end of a file.
	N   int
	Err error // an *OpError
}

// Wait returns at least one and at most len(out) completions, in the order in which requests ended.
// It blocks until there is one, also if nothing is in flight. One goroutine waits at a time, the
// others queue. It returns ErrClosed after Close, and ErrInvalid for an empty out. It returns
// ErrBroken if the ring is broken and nothing is in flight, or if it cannot wait; the memory of
// requests in flight must then not be used, and a later Wait may find that they ended.
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
		err = r.broken // requests in flight of a broken ring end normally
	}
	r.mu.Unlock()
	if err != nil {
		return 0, fmt.Errorf("wait for io_uring: %w", err)
	}
	return r.reap(out)
}

// reap takes completions out of the queue, at least one. A request must be in flight.
func (r *Ring) reap(out []Completion) (int, error) {
	for {
		if n, err := r.collect(out); n > 0 || err != nil {
			return n, err
		}
		if err := r.lost(); err != nil {
			return 0, err
		}
		// The kernel also moves completions here that did not fit into the queue. EAGAIN and EBUSY
		// are temporary, and requests in flight end regardless of the error.
		_, errno := r.api.Enter(r.fd, 0, 1, enterGetEvents)
		switch errno {
		case 0, syscall.EINTR, syscall.EAGAIN, syscall.EBUSY:
		default:
			return 0, r.breaks("io_uring_enter", errno)
		}
	}
}

// collect takes the available completions.
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
	// The kernel may overwrite the entries after this store.
	atomic.StoreUint32(r.cqHead, head)
	if n > 0 {
		return n, nil
	}
	return 0, err
}
