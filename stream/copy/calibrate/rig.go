package calibrate

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream"
	"github.com/kvlane/kvlane/stream/copy/plan"
)

const (
	// minBlocks is how many blocks of a size must fit the memory for the size to be measured.
	minBlocks = 8
	// hostSpan is over how many bytes the smallest blocks are scattered on the host's side. Over more of them, that many
	// translations of addresses limit all paths alike, and say nothing of which is best for a batch whose blocks lie closer.
	hostSpan = 64 << 20
	// closeTimeout bounds the wait for what a failed calibration left running.
	closeTimeout = 30 * time.Second
	// seed of the places of blocks; it is the same each time, so that two calibrations measure the same.
	seed = 0x6b766c616e65
)

// rig is the memory, the streams and the batches of a calibration.
type rig struct {
	dev       device.Device
	host, gpu *mem.Region
	nic       *NIC // that has the memory registered; nil: none has
	streams   []opened
	opposite  []opened // what copies the opposite way
	sizes     []int64
	lists     map[listID]*blocks
	rng       *rand.Rand
}

// opened is a variant with its stream.
type opened struct {
	*variant
	stream stream.Stream
}

// listID names the blocks that batches of one kind are made of.
type listID struct {
	dir  plan.Direction
	side plan.Side
	size int64
}

// blocks are more than the longest batch needs, so that one batch hardly meets what the one before left in caches.
type blocks struct {
	mem.Batch                // as a list
	pairs     []mem.PageSlot // as pages, but within the device
	count     int
	next      int
}

// newRig allocates the memory. Where o leaves its size open, less will do.
func newRig(dev device.Device, o *Options) (*rig, error) {
	r := &rig{dev: dev, lists: make(map[listID]*blocks), rng: rand.New(rand.NewPCG(seed, seed))}
	bytes, least := o.Bytes, o.Bytes
	if bytes == 0 {
		bytes, least = DefaultBytes, MinBytes
	}
	err := r.allocate(bytes)
	for errors.Is(err, errdefs.ErrNoMemory) && bytes/2 >= least {
		bytes /= 2
		err = r.allocate(bytes)
	}
	if err != nil {
		return nil, err
	}
	// A block must have somewhere else to go.
	r.sizes = slices.DeleteFunc(slices.Clone(o.Sizes), func(s int64) bool { return s > bytes/minBlocks })
	if len(r.sizes) < 2 {
		err := fmt.Errorf("fewer than two sizes fit %d bytes of memory %d times: %w", bytes, minBlocks, errdefs.ErrInvalid)
		return nil, errors.Join(err, r.free())
	}
	return r, nil
}

func (r *rig) allocate(bytes int64) error {
	host, err := r.dev.AllocHost(bytes)
	if err != nil {
		return fmt.Errorf("allocate %d bytes of pinned memory: %w", bytes, err)
	}
	gpu, err := r.dev.Alloc(bytes, device.AllocOptions{})
	if err != nil {
		return errors.Join(fmt.Errorf("allocate %d bytes of device memory: %w", bytes, err), r.dev.Free(host))
	}
	r.host, r.gpu = host, gpu
	return nil
}

// openStream opens a stream for v.
func (r *rig) openStream(open Opener, v *variant) error {
	s, err := open(v.path, v.ctas)
	if err != nil {
		return fmt.Errorf("open stream: %w", err)
	}
	r.streams = append(r.streams, opened{v, s})
	return nil
}

// register lets the NICs reach the memory.
func (r *rig) register(nic *NIC) error {
	if err := nic.Register(r.gpu, r.host); err != nil {
		return fmt.Errorf("register %d bytes of memory: %w", r.gpu.Len()+r.host.Len(), err)
	}
	r.nic = nic
	return nil
}

// close closes the streams and frees the memory. Where a stream does not close, or a NIC does not let go of the memory, that
// stays: they may still use it.
func (r *rig) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	var errs []error
	for _, s := range slices.Concat(r.streams, r.opposite) {
		if err := s.stream.Close(ctx); err != nil {
			errs = append(errs, fmt.Errorf("close the stream of %s: %w", s, err))
		}
	}
	if len(errs) == 0 && r.nic != nil {
		errs = append(errs, r.nic.Unregister(ctx, r.gpu, r.host))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("%d bytes of memory are left allocated: %w", r.gpu.Len()+r.host.Len(), err)
	}
	return r.free()
}

func (r *rig) free() error { return errors.Join(r.dev.Free(r.gpu), r.dev.Free(r.host)) }

// most is how many copies of size a batch may have.
func (r *rig) most(size int64) int64 {
	return min(maxCount, r.gpu.Len()/size/2, max(maxBytes/size, minBlocks/2))
}

// batch returns n copies of size bytes, as by takes them. No block is in it twice.
func (r *rig) batch(by opened, dir plan.Direction, side plan.Side, size int64, n int) *mem.Batch {
	id := listID{dir, side, size}
	b := r.lists[id]
	if b == nil {
		b = r.build(id)
		r.lists[id] = b
	}
	if b.next+n > b.count {
		b.next = 0
	}
	from := b.next
	b.next += n
	if by.form(dir) == plan.Paged {
		return r.paged(id, b.pairs[from:b.next])
	}
	return &mem.Batch{Dst: b.Dst[from:b.next], Src: b.Src[from:b.next]}
}

// paged is a batch of pages between device and host.
func (r *rig) paged(id listID, pairs []mem.PageSlot) *mem.Batch {
	p := &mem.Paged{Dir: mem.ToPages, Groups: []mem.PageGroup{{
		Planes: []mem.Plane{{Region: r.gpu, Stride: id.size, Bytes: id.size}},
		Slots:  mem.Slots{Region: r.host, Stride: id.size},
		Pairs:  pairs,
	}}}
	if id.dir == plan.D2H {
		p.Dir = mem.ToSlots
	}
	return &mem.Batch{Paged: p}
}

func (r *rig) build(id listID) *blocks {
	n := int(2 * r.most(id.size))
	all := int(r.gpu.Len() / id.size)
	extents := func(region *mem.Region, at []int) []mem.Extent {
		list := make([]mem.Extent, len(at))
		for i := range list {
			list[i] = mem.Extent{Region: region, Off: int64(at[i]) * id.size, Len: id.size}
		}
		return list
	}
	pages := r.scatter(n, all)
	gpu := extents(r.gpu, pages)
	if id.dir == plan.D2D {
		// Half of them to the other half: what is written is not read.
		return &blocks{Batch: mem.Batch{Dst: gpu[:n/2], Src: gpu[n/2:]}, count: n / 2}
	}
	slots := make([]int, n)
	for i := range slots {
		slots[i] = i
	}
	if id.side == plan.Scattered {
		slots = r.scatter(n, min(all, max(n, int(hostSpan/id.size))))
	}
	b := &blocks{count: n, pairs: make([]mem.PageSlot, n)}
	for i := range b.pairs {
		b.pairs[i] = mem.PageSlot{Page: uint32(pages[i]), Slot: uint32(slots[i])}
	}
	host := extents(r.host, slots)
	if b.Dst, b.Src = gpu, host; id.dir == plan.D2H {
		b.Dst, b.Src = host, gpu
	}
	return b
}

// scatter draws n of all places, each at most once, in no order: one of each n-th part.
func (r *rig) scatter(n, all int) []int {
	places := make([]int, n)
	for i := range places {
		low, high := i*all/n, (i+1)*all/n
		places[i] = low + r.rng.IntN(high-low)
	}
	r.rng.Shuffle(n, func(i, j int) { places[i], places[j] = places[j], places[i] })
	return places
}

// single is a batch of one copy.
func (r *rig) single(dir plan.Direction, size int64) *mem.Batch {
	host, gpu := mem.Extent{Region: r.host, Len: size}, mem.Extent{Region: r.gpu, Len: size}
	if dir == plan.H2D {
		return &mem.Batch{Dst: []mem.Extent{gpu}, Src: []mem.Extent{host}}
	}
	return &mem.Batch{Dst: []mem.Extent{host}, Src: []mem.Extent{gpu}}
}
