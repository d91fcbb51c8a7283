package uring

import (
	"fmt"
	"sync/atomic"
	"syscall"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/sys/hostmem"
)

// Op is a request. Memory that it names is never of the Go heap, and stays as it is until the completion is there.
type Op struct {
	Code Opcode
	FD   int
	// Buffer is 1 + the place among those that RegisterBuffers was given of the buffer that Buf lies in, or 0. Where the ring has none
	// registered it means nothing.
	Buffer int
	Off    int64  // in the file, bytes
	Buf    []byte // none of NOP
	Token  any    // for the caller
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

// Submit gives requests to the kernel, in order, and returns how many it took: as many as there is room for. It waits for nothing in
// flight. Errors, all of which leave the others alone: ErrBusy where there is no room or the kernel has none for now, after
// which the caller waits for a completion; ErrInvalid for a request that cannot be, of which none was taken; ErrClosed;
// ErrBroken. An error of the kernel about one request is that request's completion.
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
		return 0, fmt.Errorf("submit to io_uring: the kernel took nothing (%w): %w", errno, errdefs.ErrBusy)
	}
	return 0, r.breaks("io_uring_enter", errno)
}

// prepare writes requests into the queue, as many as there is room for.
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
	// The entries are there before the kernel can see the tail.
	atomic.StoreUint32(r.sqTail, tail+uint32(n))
	return n, nil
}

// flush has the kernel take what is in the queue. What it does not take is taken out of the queue again: the kernel looks at it in
// io_uring_enter only.
func (r *Ring) flush(n uint32) (taken int, errno syscall.Errno) {
	for n > uint32(taken) {
		var got int
		// The kernel stops after a request that is wrong in itself: that has a completion, and the next call takes the rest.
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

// take counts what the kernel took of the requests that were prepared last, and frees the slots of the others.
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

// fill writes a request as the kernel reads it.
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
