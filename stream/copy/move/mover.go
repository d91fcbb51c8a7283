package move

import (
	"context"
	"fmt"
	"math"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/stream/copy/describe"
)

// Mover implements one path of a stream. Supports is safe for concurrent use. Only the goroutine
// that issues steps calls the other methods.
type Mover interface {
	// Supports reports whether the path can carry b, and whether it would fill the sums that b
	// requests.
	Supports(b *Batch) (ok, sums bool)
	// Fits reports whether another step of b fits in addition to the work in flight.
	Fits(b *Batch, f InFlight) bool
	// Step issues as much of b as fits at once, and reports whether all of b is issued. Fits must
	// have returned true for the step. If Step leaves st.Event and st.Lost unset, the caller
	// records an event on the stream's queue.
	Step(b *Batch, st *Step) (done bool, err error)
}

// Owner is a mover that owns memory or queues.
type Owner interface {
	// Prepare acquires the resources, before the first batch. It may be called again after a
	// failure. Quiesce and Free release all acquired resources.
	Prepare() error
	// Quiesce waits until the mover's work has ended, and closes its queues. failed is the error of
	// queues that are closed nevertheless; it is returned once. If err is not nil, Quiesce may be
	// called again. The stream's queue is already closed.
	Quiesce(ctx context.Context) (failed, err error)
	// Free releases the memory, after Quiesce. It may be called again.
	Free() error
}

// Joiner is a mover with a separate queue. Join orders later work on the stream's queue after all
// work that the mover has issued, and later work of the mover after earlier work of the stream's
// queue.
type Joiner interface{ Join() error }

// Env holds the resources of a stream's movers.
type Env struct {
	Device device.Device
	Queue  device.Queue
	Ring   *Ring // of descriptors
	// CTAs is the number of thread blocks of a kernel if the batch does not set it. Zero: the
	// path's default.
	CTAs         int
	HighPriority bool // of queues
	Forced       bool // batches have no other path
}

// launcher returns the queue as a device.Launcher. The error wraps ErrNotSupported if the queue
// does not support the kernel.
func (e *Env) launcher(kernel string) (device.Launcher, error) {
	l, ok := e.Queue.(device.Launcher)
	if !ok {
		return nil, fmt.Errorf("the device runs no kernels: %w", errdefs.ErrNotSupported)
	}
	if !hasKernel(l, kernel) {
		return nil, fmt.Errorf("the device has no kernel %s: %w", kernel, errdefs.ErrNotSupported)
	}
	return l, nil
}

// hasKernel reports whether l supports a kernel. Every Launcher supports the two plain copy
// kernels.
func hasKernel(l device.Launcher, name string) bool {
	if name == device.KernelCopyList || name == device.KernelCopyPaged {
		return true
	}
	lister, ok := l.(device.KernelLister)
	return ok && lister.HasKernel(name)
}

// Batch is a batch in the form that movers need.
type Batch struct {
	describe.Shape
	At describe.Cursor // the batch and the position in it
	// ChunkBytes bounds the bytes of a step, and CTAs the thread blocks of a kernel. Zero lets the
	// mover decide.
	ChunkBytes int64
	CTAs       int
	Sent       int64 // bytes of the previous steps
}

// WantsSums reports whether the batch requests sums.
func (b *Batch) WantsSums() bool {
	p := b.At.Batch.Paged
	return p != nil && len(p.Sums) > 0
}

// limit returns the maximum number of bytes of one step.
func (b *Batch) limit() int64 {
	if b.ChunkBytes > 0 {
		return b.ChunkBytes
	}
	return math.MaxInt64
}

// ctas returns the maximum number of thread blocks of a kernel for b, or otherwise if none is
// configured.
func (e *Env) ctas(b *Batch, otherwise int) int {
	switch {
	case b.CTAs > 0:
		return b.CTAs
	case e.CTAs > 0:
		return e.CTAs
	}
	return otherwise
}

// MaxCalls is the maximum number of device calls of a stream in flight. Drivers block the caller at
// about a thousand pending calls, which would block Submit.
const MaxCalls = 512

// InFlight counts the work that a stream has in flight.
type InFlight struct{ Steps, Calls int }

// admits reports whether this number of additional calls may be made.
func (f InFlight) admits(calls int) bool { return f.Calls+calls <= MaxCalls }

// Step is an issued part of a batch.
type Step struct {
	Event device.Event // done when the step is done
	Lost  bool         // work may have been issued, and no event reports its end
	Calls int
	Bytes int64 // copied bytes

	sums []describe.SumRows
	// Memory that the step holds, and the end positions to release.
	ring                *Ring
	staging             *space
	ringEnd, stagingEnd uint64
}

// Collect copies the sums of a completed step to the batch's Sums.
func (st *Step) Collect() {
	for i := range st.sums {
		rows := &st.sums[i]
		rows.Read(st.ring.region.Bytes()[rows.At%st.ring.size:])
	}
}

// GiveBack releases the step's memory. Call it after the last access to that memory, also for a
// failed step: a broken stream writes no further descriptors.
func (st *Step) GiveBack() {
	if st.ring != nil {
		st.ring.giveBack(st.ringEnd)
	}
	if st.staging != nil {
		st.staging.giveBack(st.stagingEnd)
	}
}

// Refused is the error of a mover that has not accessed b's memory and does not copy it, so that
// another path can.
type Refused struct{ Err error }

func (r *Refused) Error() string { return r.Err.Error() }
func (r *Refused) Unwrap() error { return r.Err }
