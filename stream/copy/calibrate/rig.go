package calibrate

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream"
	"github.com/kvlane/kvlane/stream/copy/measure"
	"github.com/kvlane/kvlane/stream/copy/plan"
)

const (
	// minBlocks is how many blocks of a size must fit the memory for the size to be measured.
	minBlocks = 8
	// hostSpan is over how many bytes the smallest blocks are scattered on the host's side. Over more of them, that many
	// translations of addresses limit all paths alike, and say nothing of which is best for a batch whose blocks lie closer.
	hostSpan = 64 << 20
	// seed of the places of blocks; it is the same each time, so that two calibrations measure the same.
	seed = 0x6b766c616e65
)

// rig is the memory, the streams and the batches of a calibration.
type rig struct {
	measure.Rig
	dev       device.Device
	host, gpu *mem.Region
	streams   []opened
	sizes     []int64
	// Blocks are drawn from more than the longest batch needs, so that one batch hardly meets what the one before left in caches.
	pools  map[poolID]*measure.Pool
	blocks [backToBack]measure.Blocks // of the batches that are under way at once, in turn
	next   int
	rng    *rand.Rand
}

// opened is a variant with its stream.
type opened struct {
	*variant
	stream stream.Stream
}

// poolID names the places that blocks of a size are taken from: on the device, on the host, or in the half of the device that
// copies within it write to or read.
type poolID struct {
	size  int64
	place place
}

type place uint8

const (
	onDevice place = iota
	onHost
	lowHalf
	highHalf
)

// newRig allocates the memory. Where o leaves its size open, less will do.
func newRig(dev device.Device, o *Options) (*rig, error) {
	r := &rig{dev: dev, pools: make(map[poolID]*measure.Pool), rng: rand.New(rand.NewPCG(seed, seed))}
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
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

func (r *rig) allocate(bytes int64) (err error) {
	if r.host, err = r.AllocHost(r.dev, bytes); err == nil {
		r.gpu, err = r.Alloc(r.dev, bytes)
	}
	if err != nil {
		return errors.Join(err, r.Close())
	}
	return nil
}

// openStream opens a stream for v, until the rig is closed.
func (r *rig) openStream(open Opener, v *variant) (opened, error) {
	s, err := open(v.path, v.ctas)
	if err != nil {
		return opened{}, fmt.Errorf("open stream: %w", err)
	}
	r.OnClose(func(ctx context.Context) error {
		if err := s.Close(ctx); err != nil {
			return fmt.Errorf("close the stream of %s: %w", v, err)
		}
		return nil
	})
	return opened{v, s}, nil
}

// close closes the streams and frees the memory. Where a stream does not close, or a NIC does not let go of the memory, that
// stays: they may still use it.
func (r *rig) close() error {
	if err := r.Close(); err != nil {
		return fmt.Errorf("%d bytes of memory are left allocated: %w", r.gpu.Len()+r.host.Len(), err)
	}
	return nil
}

// most is how many copies of size a batch may have.
func (r *rig) most(size int64) int64 {
	return min(maxCount, r.gpu.Len()/size/2, max(maxBytes/size, minBlocks/2))
}

// batch returns n copies of size bytes, as by takes them. No block is in it twice. The lists of the batch before the last
// backToBack are used again.
func (r *rig) batch(by opened, dir plan.Direction, side plan.Side, size int64, n int) *mem.Batch {
	b := &r.blocks[r.next%backToBack]
	r.next++
	s := measure.Shape{
		Dir: mem.ToPages, Near: r.gpu, Far: r.host, Size: size, Count: n, Most: n, Pages: by.paged(dir),
		NearRows: r.pool(onDevice, size),
	}
	switch {
	case dir == plan.D2D: // what is written is not read
		s.Far, s.NearRows, s.FarRows = r.gpu, r.pool(lowHalf, size), r.pool(highHalf, size)
	case side == plan.Scattered:
		s.FarRows = r.pool(onHost, size)
	}
	if dir == plan.D2H {
		s.Dir = mem.ToSlots
	}
	b.Reset(s)
	b.Draw(r.rng)
	b.Write()
	return &b.Batches()[0]
}

func (r *rig) pool(at place, size int64) *measure.Pool {
	id := poolID{size, at}
	if r.pools[id] == nil {
		all, base := int(r.gpu.Len()/size), 0
		n := int(2 * r.most(size))
		switch at {
		case onDevice:
		case onHost:
			all = min(all, max(n, int(hostSpan/size)))
		case lowHalf, highHalf:
			n, all = n/2, all/2
			base = int(at-lowHalf) * all
		}
		r.pools[id] = measure.NewPool(r.rng, n, all, base)
	}
	return r.pools[id]
}

// single is a batch of one copy.
func (r *rig) single(dir plan.Direction, size int64) *mem.Batch {
	host, gpu := mem.Extent{Region: r.host, Len: size}, mem.Extent{Region: r.gpu, Len: size}
	if dir == plan.H2D {
		return &mem.Batch{Dst: []mem.Extent{gpu}, Src: []mem.Extent{host}}
	}
	return &mem.Batch{Dst: []mem.Extent{host}, Src: []mem.Extent{gpu}}
}
