package mem

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"

	"github.com/kvlane/kvlane/errdefs"
)

// bufferAlign is the unit of a buffer's stride in bytes: a cache line.
const bufferAlign = 64

// BufferHooks allocate and register the memory of Buffers, because package mem imports neither
// devices nor NICs. Zero and Kept must be safe for concurrent use; other hooks are called one at a
// time.
type BufferHooks struct {
	// Alloc allocates memory, at addresses that are multiples of 64, and Free frees it. Both are
	// required.
	Alloc func(bytes int64) (*Region, error)
	Free  func(r *Region) error
	// Pin registers memory of Alloc with a device and returns its host-pinned region, and Unpin
	// undoes that. Nil: Alloc returns memory of the requested kind.
	Pin   func(r *Region) (*Region, error)
	Unpin func(r *Region) error
	// Register registers the memory with a NIC and returns its key: the local key of buffers that
	// are sent, the remote key of buffers that peers write. Deregister undoes that. Nil: no NIC
	// uses the memory, and keys are zero.
	Register   func(r *Region) (key uint32, err error)
	Deregister func(ctx context.Context, r *Region) error
	// Zero zeroes memory that the CPU cannot access, and returns when that is done. It is required
	// for device memory.
	Zero func(e Extent) error
	// Kept is called to log an error that prevents memory from being freed. It may be nil.
	Kept func(err error)
}

// BufferOptions are the options of Buffers.
type BufferOptions struct {
	Kind     Kind  // host, host-pinned or device
	Count    int64 // number of buffers
	Capacity int64 // bytes of a buffer, at most 4 GiB - 1
	Hooks    BufferHooks
}

// Buffers lends buffers from one region of memory that a NIC uses. Each buffer begins at a multiple
// of the stride, at the same offset from both addresses of the region. A buffer is zeroed before
// its first loan and at each release. All methods are safe for concurrent use.
type Buffers struct {
	o    BufferOptions
	pool *SlotPool
	key  uint32

	kept atomic.Int64

	mu     sync.Mutex // held while memory is freed
	region *Region    // returned by Pin, or by Alloc without Pin
	steps  []bufferStep
}

// bufferStep is a pending step of freeing the memory.
type bufferStep struct {
	name string
	do   func(ctx context.Context) error
}

// BufferStats describes Buffers.
type BufferStats struct {
	SlotPoolStats
	Kept int64 // number of failures that prevented memory from being freed
}

// Buffer is a lent buffer, with the values of its entry in a scatter-gather list. It may be copied.
// The zero value refers to no buffer.
type Buffer struct {
	CPU  CPUAddr // zero for device memory
	Dev  DevAddr // zero for pageable memory
	Len  uint32  // bytes in use, at most the capacity
	Key  uint32  // of BufferHooks.Register
	slot uint32
	loan uint32
}

// NewBuffers allocates, pins, zeroes and registers memory for buffers. It returns ErrInvalid for
// options out of range and memory of another kind, and the errors of the hooks. After an error all
// memory is freed, unless that fails too; then the error has both causes.
func NewBuffers(o BufferOptions) (*Buffers, error) {
	b := &Buffers{o: o}
	if err := b.open(); err != nil {
		return nil, errors.Join(fmt.Errorf("open %d %s buffers of %d bytes: %w", o.Count, o.Kind, o.Capacity, err), b.free(context.Background()))
	}
	return b, nil
}

func (b *Buffers) open() (err error) {
	o, h := &b.o, &b.o.Hooks
	switch {
	case o.Kind != KindHost && o.Kind != KindHostPinned && o.Kind != KindDevice:
		return fmt.Errorf("no buffers are of this kind: %w", errdefs.ErrInvalid)
	case o.Count <= 0 || o.Count > math.MaxInt32 || o.Capacity <= 0 || o.Capacity > math.MaxUint32:
		return fmt.Errorf("numbers out of range: %w", errdefs.ErrInvalid)
	case h.Alloc == nil || h.Free == nil || (h.Pin == nil) != (h.Unpin == nil) || (h.Register == nil) != (h.Deregister == nil):
		return fmt.Errorf("hooks without their counterparts: %w", errdefs.ErrInvalid)
	case o.Kind == KindDevice && h.Zero == nil:
		return fmt.Errorf("device memory needs a hook that zeroes it: %w", errdefs.ErrInvalid)
	}
	stride := (o.Capacity + bufferAlign - 1) &^ (bufferAlign - 1)
	if o.Count > math.MaxInt64/stride {
		return fmt.Errorf("%d bytes each: %w", stride, errdefs.ErrInvalid)
	}
	r, err := h.Alloc(o.Count * stride)
	if err != nil {
		return err
	}
	b.region = r
	b.steps = append(b.steps, bufferStep{"free", func(context.Context) error { return h.Free(r) }})
	if h.Pin != nil {
		pinned, err := h.Pin(r)
		if err != nil {
			return err
		}
		b.region = pinned
		b.steps = append(b.steps, bufferStep{"unregister from the device", func(context.Context) error { return h.Unpin(pinned) }})
	}
	r = b.region
	if r.Kind() != o.Kind || r.Len() < o.Count*stride || uint64(r.CPU())%bufferAlign != 0 || uint64(r.Dev())%bufferAlign != 0 {
		return fmt.Errorf("the hooks returned the %s: %w", r, errdefs.ErrInvalid)
	}
	if err := b.zero(Extent{Region: r, Len: o.Count * stride}); err != nil {
		return err
	}
	if h.Register != nil {
		if b.key, err = h.Register(r); err != nil {
			return err
		}
		b.steps = append(b.steps, bufferStep{"deregister from the NIC", func(ctx context.Context) error { return h.Deregister(ctx, r) }})
	}
	b.pool, err = NewSlotPool(ownedRegion{r}, o.Count, stride)
	if err == nil {
		b.pool.zero = b.zero
	}
	return err
}

// ownedRegion implements Allocator with memory that Buffers own.
type ownedRegion struct{ r *Region }

func (o ownedRegion) Alloc(int64) (*Region, error) { return o.r, nil }

func (o ownedRegion) Free(*Region) error { return nil }

// zero zeroes memory.
func (b *Buffers) zero(e Extent) error {
	if m := e.Bytes(); m != nil {
		clear(m)
		return nil
	}
	if err := b.o.Hooks.Zero(e); err != nil {
		return fmt.Errorf("zero %d bytes of the %s: %w", e.Len, e.Region, err)
	}
	return nil
}

// Region returns the memory of all buffers.
func (b *Buffers) Region() *Region { return b.pool.Slots().Region }

// Stride returns the distance between the starts of neighbouring buffers in bytes: the capacity
// rounded up to 64.
func (b *Buffers) Stride() int64 { return b.pool.Slots().Stride }

// Stats returns the statistics of the buffers.
func (b *Buffers) Stats() BufferStats {
	return BufferStats{SlotPoolStats: b.pool.Stats(), Kept: b.kept.Load()}
}

// TryAcquire lends a buffer of size bytes. It returns ErrBusy if all are lent, ErrInvalid for no
// bytes or more than the capacity, and ErrClosed after Close was called.
func (b *Buffers) TryAcquire(size int64) (Buffer, error) {
	if err := b.checkSize(size); err != nil {
		return Buffer{}, err
	}
	s, err := b.pool.TryAcquire()
	if err != nil {
		return Buffer{}, err
	}
	return b.buffer(s, size), nil
}

// Acquire lends a buffer of size bytes, like TryAcquire. While all buffers are lent it waits, in
// the order of the calls. If ctx ends first, it returns ErrBusy with the cause.
func (b *Buffers) Acquire(ctx context.Context, size int64) (Buffer, error) {
	if err := b.checkSize(size); err != nil {
		return Buffer{}, err
	}
	s, err := b.pool.Acquire(ctx)
	if err != nil {
		return Buffer{}, err
	}
	return b.buffer(s, size), nil
}

func (b *Buffers) checkSize(size int64) error {
	if size <= 0 || size > b.o.Capacity {
		return fmt.Errorf("acquire a buffer of %d bytes: the capacity is %d: %w", size, b.o.Capacity, errdefs.ErrInvalid)
	}
	return nil
}

func (b *Buffers) buffer(s PoolSlot, size int64) Buffer {
	e := s.Extent()
	return Buffer{CPU: e.CPU(), Dev: e.Dev(), Len: uint32(size), Key: b.key, slot: s.index, loan: s.loan}
}

// Extent returns the memory of x, Len bytes. It returns ErrInvalid if x is not a buffer that b
// currently lends.
func (b *Buffers) Extent(x Buffer) (Extent, error) {
	s, err := b.find(x)
	if err != nil {
		return Extent{}, err
	}
	b.pool.mu.Lock()
	defer b.pool.mu.Unlock()
	if err := s.check("used"); err != nil {
		return Extent{}, err
	}
	return s.Extent().Sub(0, int64(x.Len)), nil
}

// find returns the slot with the addresses of x. It does not check whether the loan has ended.
func (b *Buffers) find(x Buffer) (PoolSlot, error) {
	s := PoolSlot{b.pool, x.slot, x.loan}
	if int64(x.slot) < b.o.Count && x.Len > 0 && int64(x.Len) <= b.o.Capacity {
		if e := s.Extent(); x.CPU == e.CPU() && x.Dev == e.Dev() {
			return s, nil
		}
	}
	return PoolSlot{}, fmt.Errorf("buffer of %d bytes (cpu %#x, device %#x) is not one of %d in the %s: %w",
		x.Len, uint64(x.CPU), uint64(x.Dev), b.o.Count, b.Region(), errdefs.ErrInvalid)
}

// Release zeroes x and ends its loan. No hardware may access it any more; if that is not certain,
// call Quarantine. It returns ErrInvalid for a buffer that is not lent by b: it was released
// already, or is foreign. If zeroing fails, x stays lent and Release may be called again.
func (b *Buffers) Release(x Buffer) error {
	s, err := b.find(x)
	if err != nil {
		return err
	}
	return s.release()
}

// Quarantine ends the loan of x when quiesced is closed, and zeroes x then. If zeroing fails, x
// stays in quarantine. It returns ErrInvalid like Release.
func (b *Buffers) Quarantine(x Buffer, quiesced <-chan struct{}) error {
	s, err := b.find(x)
	if err != nil {
		return err
	}
	return s.quarantine(quiesced)
}

// Close refuses new loans and frees the memory: it deregisters it from the NIC, unregisters it from
// the device and frees it. Each step follows only if the one before it succeeded. After a failure
// the memory is kept, the failure is counted and passed to BufferHooks.Kept, and Close may be
// called again. It returns ErrBusy while buffers are lent or, after ctx ended, in quarantine.
func (b *Buffers) Close(ctx context.Context) error {
	if err := b.pool.Close(ctx); err != nil {
		return err
	}
	return b.free(ctx)
}

// free frees the memory, and counts and reports a failure.
func (b *Buffers) free(ctx context.Context) error {
	err := b.takeSteps(ctx)
	if err != nil {
		b.kept.Add(1)
		if b.o.Hooks.Kept != nil {
			b.o.Hooks.Kept(err)
		}
	}
	return err
}

// takeSteps does the steps that are left, up to one that fails.
func (b *Buffers) takeSteps(ctx context.Context) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	for n := len(b.steps) - 1; n >= 0; n-- {
		if err := b.steps[n].do(ctx); err != nil {
			return fmt.Errorf("free buffers: %s: the %s is kept: %w", b.steps[n].name, b.region, err)
		}
		b.steps = b.steps[:n]
	}
	return nil
}

// Index returns the number of the buffer, from 0.
func (x Buffer) Index() uint32 { return x.slot }

// CheckReady returns ErrInvalid unless x can be sent or written by a NIC and read by the CPU: both
// addresses, the length and the loan are not zero. Pageable memory has no device address. Check the
// entry of a request and that of its flag.
func (x Buffer) CheckReady() error {
	if x.CPU == 0 || x.Dev == 0 || x.Len == 0 || x.loan == 0 {
		return fmt.Errorf("buffer %d of %d bytes needs both addresses, a length and a loan (cpu %#x, device %#x, loan %d): %w",
			x.slot, x.Len, uint64(x.CPU), uint64(x.Dev), x.loan, errdefs.ErrInvalid)
	}
	return nil
}
