package move

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/stream/copy/describe"
)

// Mover is one path of a stream. Takes is safe for concurrent use, the others are of whoever issues.
type Mover interface {
	// Takes reports whether the path can carry b, and whether it then fills the sums that b asks for.
	Supports(b *Batch) (ok, sums bool)
	// Room reports whether another step of b may follow what is in flight.
	Room(b *Batch, f Flight) bool
	// Step issues a part of b, as much as fits at once, and reports whether that was the last. Room has just found place for it.
	// If it leaves st.Event and st.Lost unset, the caller records an event on the stream's queue.
	Step(b *Batch, st *Step) (done bool, err error)
}

// Owner is a mover with memory or queues of its own.
type Owner interface {
	// Prepare gets them, before the first batch. Where it fails half-way it may be called again; what it has got so far,
	// Quiesce and Free give back.
	Prepare() error
	// Quiesce waits until nothing that the mover issued runs, and closes its queues. failed is what those said that are
	// closed all the same, once; after err it may be called again. The stream's queue is closed already.
	Quiesce(ctx context.Context) (failed, err error)
	// Free gives the memory back, after Quiesce. It may be called again.
	Free() error
}

// Joiner is a mover with a queue beside the stream's. Join puts what is enqueued on the stream's queue from now on behind what
// the mover has issued, and what the mover issues later behind that.
type Joiner interface{ Join() error }

// Env is what a stream's movers are made of.
type Env struct {
	Device device.Device
	Queue  device.Queue
	Ring   *Ring // of descriptors
	// CTAs is how many thread blocks a kernel may have where the batch does not say. Zero: what suits the path.
	CTAs         int
	HighPriority bool // of queues
	Forced       bool // batches have no other path
	Now          func() time.Duration
}

// launcher returns the queue's ability to run a kernel.
func (e *Env) launcher(kernel string) (device.Launcher, error) {
	l, ok := e.Queue.(device.Launcher)
	if !ok {
		return nil, fmt.Errorf("it runs no kernels: %w", errdefs.ErrNotSupported)
	}
	if !hasKernel(l, kernel) {
		return nil, fmt.Errorf("it has no kernel %s: %w", kernel, errdefs.ErrNotSupported)
	}
	return l, nil
}

// hasKernel reports whether l has a kernel: the plain ones every Launcher has.
func hasKernel(l device.Launcher, name string) bool {
	if name == device.KernelCopyList || name == device.KernelCopyPaged {
		return true
	}
	lister, ok := l.(device.KernelLister)
	return ok && lister.HasKernel(name)
}

// Batch is a batch as movers know it.
type Batch struct {
	describe.Shape
	At describe.Cursor // which has the batch itself
	// ChunkBytes is the most that a step may carry, and CTAs how many thread blocks a kernel may have; zero: as the mover likes.
	ChunkBytes int64
	CTAs       int
	Begun      time.Duration // when its first step was issued, by Env.Now
	Sent       int64         // bytes that steps before carried
}

// WantsSums reports whether the batch asks for sums.
func (b *Batch) WantsSums() bool {
	p := b.At.Batch.Paged
	return p != nil && len(p.Sums) > 0
}

// limit is the most that one step may carry.
func (b *Batch) limit() int64 {
	if b.ChunkBytes > 0 {
		return b.ChunkBytes
	}
	return math.MaxInt64
}

// ctas returns how many thread blocks a kernel for b may have.
func (e *Env) ctas(b *Batch, otherwise int) int {
	switch {
	case b.CTAs > 0:
		return b.CTAs
	case e.CTAs > 0:
		return e.CTAs
	}
	return otherwise
}

// MaxCalls is how many calls of the device a stream has in flight. Drivers block the caller when about a thousand are pending,
// which would hold up Submit.
const MaxCalls = 512

// Flight is what a stream has in flight.
type Flight struct{ Steps, Calls int }

// admits reports whether so many calls more may be made.
func (f Flight) admits(calls int) bool { return f.Calls+calls <= MaxCalls }

// Step is a part of a batch that was issued.
type Step struct {
	Event device.Event // done when the step is
	Lost  bool         // something may have been issued, and no event tells when it is done
	Calls int
	Bytes int64 // that it copies

	sums []describe.SumRows
	// What it took memory of, and the position up to which.
	ring                *Ring
	staging             *space
	ringEnd, stagingEnd uint64
}

// Collect copies the sums of a step that is done to where the batch wants them.
func (st *Step) Collect() {
	for i := range st.sums {
		rows := &st.sums[i]
		rows.Read(st.ring.region.Bytes()[rows.At%st.ring.size:])
	}
}

// GiveBack frees what the step held, once nothing touches that any more: a step that failed too, as a broken stream writes no
// more descriptors.
func (st *Step) GiveBack() {
	if st.ring != nil {
		st.ring.giveBack(st.ringEnd)
	}
	if st.staging != nil {
		st.staging.giveBack(st.stagingEnd)
	}
}

// Refused is the error of a mover that has not touched b's memory and takes nothing of it: another path may.
type Refused struct{ Err error }

func (r *Refused) Error() string { return r.Err.Error() }
func (r *Refused) Unwrap() error { return r.Err }
