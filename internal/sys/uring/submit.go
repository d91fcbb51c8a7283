package uring

import (
	"fmt"
	"sync/atomic"
	"syscall"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/sys/hostmem"
)

// Op is a request. Its memory must be outside the Go heap and must not change until the completion
// arrives.
type Op struct {
	Code Opcode
	FD   int
	// Buffer is 0, or 1 + the index of the buffer passed to RegisterBuffers that contains Buf. It
	// is ignored if the ring has no registered buffers.
	Buffer int
	Off    int64  // offset in the file, bytes
	Buf    []byte // nil for NOP
	Token  any    // value for the caller
}

func (o *Op) validate() error {
	moves := o.Code == Read || o.Code == Write
	switch {
	case !moves && o.Code != NOP:
		return fmt.Errorf("%s: %w", o.Code, errdefs.ErrInvalid)
	case o.Off < 0, len(o.Buf) > MaxBytes, moves != (len(o.Buf) > 0):
		return fmt.Errorf("%s %d bytes at byte %d: %w", o.Code, len(o.Buf), o.Off, errdefs.ErrInvalid)
	}
	return nil
}

// Submit passes requests to the kernel in order. It returns the number of accepted requests, which
// is limited by the free slots. It does not wait for requests in flight. An error does not affect
// accepted requests. ErrBusy means that there are no free slots or the kernel lacks resources;
// retry after a completion. ErrInvalid means that a request is invalid and none was accepted.
// ErrClosed and ErrBroken are returned for a closed or broken ring. If the kernel refuses a single
// request, the completion of that request has the error.
func (r *Ring) Submit(ops ...Op) (int, error) {
	for i := range ops {
		if err := ops[i].validate(); err != nil {
			return 0, fmt.Errorf("submit to io_uring: %w", err)
		}
	}
	r.submitting.Lock()
	defer r.submitting.Unlock()
	n, err := r.prepare(ops)
	if err != nil || n == 0 {
		return 0, err
	}
	taken, errno := r.flush(uint32(n))
	r.take(ops[:n], taken)
	switch {
	case taken > 0:
		return taken, nil
	case errno == 0 || errno == syscall.EAGAIN || errno == syscall.EBUSY:
		return 0, fmt.Errorf("submit to io_uring: the kernel accepted no request (%w): %w", errno, errdefs.ErrBusy)
	}
	return 0, r.breaks("io_uring_enter", errno)
}

// prepare writes as many requests into the queue as fit.
func (r *Ring) prepare(ops []Op) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.closed:
		return 0, fmt.Errorf("submit to io_uring: %w", errdefs.ErrClosed)
	case r.broken != nil:
		return 0, fmt.Errorf("submit to io_uring: %w", r.broken)
	case len(r.free) == 0 && len(ops) > 0:
		return 0, fmt.Errorf("submit to io_uring: %d requests are in flight: %w", r.depth, errdefs.ErrBusy)
	}
	n := min(len(ops), len(r.free))
	tail := atomic.LoadUint32(r.sqTail)
	for i := range ops[:n] {
		slot := r.free[len(r.free)-1-i]
		r.slots[slot] = ops[i]
		r.fill(&r.sq[(tail+uint32(i))&r.sqMask], &ops[i], slot)
	}
	r.free = r.free[:len(r.free)-n]
	// The kernel must see the entries before the new tail.
	atomic.StoreUint32(r.sqTail, tail+uint32(n))
	return n, nil
}

// flush passes the queue to the kernel. Requests that the kernel does not accept are removed from
// the queue; the kernel reads the queue only in io_uring_enter.
func (r *Ring) flush(n uint32) (taken int, errno syscall.Errno) {
	for n > uint32(taken) {
		var got int
		// The kernel stops after an invalid request. It creates a completion for it, and the next
		// call passes the remaining requests.
		got, errno = r.api.Enter(r.fd, n-uint32(taken), 0, 0)
		if errno == syscall.EINTR {
			continue
		}
		if errno != 0 || got == 0 {
			break
		}
		taken += got
	}
	atomic.StoreUint32(r.sqTail, atomic.LoadUint32(r.sqHead))
	return taken, errno
}

// take counts the accepted requests and frees the slots of the others.
func (r *Ring) take(ops []Op, taken int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	tail := atomic.LoadUint32(r.sqTail)
	for i := taken; i < len(ops); i++ {
		slot := uint32(r.sq[(tail+uint32(i-taken))&r.sqMask].userData)
		r.slots[slot] = Op{}
		r.free = append(r.free, slot)
	}
	if r.inFlight += taken; r.inFlight > 0 {
		r.changed.Broadcast()
	}
}

// fill writes the queue entry of a request.
func (r *Ring) fill(e *sqe, o *Op, slot uint32) {
	*e = sqe{opcode: uint8(o.Code), fd: int32(o.FD), off: uint64(o.Off), userData: uint64(slot)}
	if o.Code == NOP {
		return
	}
	e.addr, e.len = uint64(hostmem.Addr(o.Buf)), uint32(len(o.Buf))
	if o.Buffer > 0 && r.buffers > 0 {
		e.opcode, e.bufIndex = uint8(readFixed), uint16(o.Buffer-1)
		if o.Code == Write {
			e.opcode = uint8(writeFixed)
		}
	}
}
