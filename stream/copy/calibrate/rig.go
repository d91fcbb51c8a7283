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
	// minBlocks is the number of blocks of a size that must fit into the memory. Larger sizes are
	// not measured.
	minBlocks = 8
	// hostSpan is the range of host memory over which the smallest blocks are scattered. Over a
	// larger range, address translations limit all paths alike, which does not show the best path
	// for blocks that are closer together.
	hostSpan = 64 << 20
	// seed is the seed of block positions. It is constant, so that calibrations are comparable.
	seed = 0x6b766c616e65
)

// rig holds the memory, the streams and the batches of a calibration.
type rig struct {
	measure.Rig
	dev       device.Device
	host, gpu *mem.Region
	streams   []opened
	sizes     []int64
	// pools have more blocks than the longest batch needs, so that few blocks of the previous batch
	// are in caches.
	pools map[poolID]*measure.Pool
	// blocks holds the batches in flight, used in turn.
	blocks [backToBack]measure.Blocks
	next   int
	rng    *rand.Rand
}

// opened is a variant with its stream.
type opened struct {
	*variant
	stream stream.Stream
}

// poolID identifies the positions of blocks of one size: on the device, on the host, or in one half
// of the device memory for copies within the device.
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

// newRig allocates the memory. If o.Bytes is zero, it halves the size until the memory is
// available, down to MinBytes.
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
	// Each size needs at least minBlocks positions.
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

// close closes the streams and frees the memory. If a stream does not close, or a NIC does not
// release the memory, the memory stays allocated, because it may still be in use.
func (r *rig) close() error {
	if err := r.Close(); err != nil {
		return fmt.Errorf("%d bytes of memory are left allocated: %w", r.gpu.Len()+r.host.Len(), err)
	}
	return nil
}

// most returns the highest number of copies of size in a batch.
func (r *rig) most(size int64) int64 {
	return min(maxCount, r.gpu.Len()/size/2, max(maxBytes/size, minBlocks/2))
}

// batch returns n copies of size bytes, in the form in which by is measured. Each block occurs
// once. It reuses the lists of the batch that was returned backToBack calls before.
func (r *rig) batch(by opened, dir plan.Direction, side plan.Side, size int64, n int) *mem.Batch {
	b := &r.blocks[r.next%backToBack]
	r.next++
	s := measure.Shape{
		Dir: mem.ToPages, Near: r.gpu, Far: r.host, Size: size, Count: n, Most: n, Pages: by.paged(dir),
		NearRows: r.pool(onDevice, size),
	}
	switch {
	case dir == plan.D2D: // source and destination do not overlap
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

// single returns a batch of one copy.
func (r *rig) single(dir plan.Direction, size int64) *mem.Batch {
	host, gpu := mem.Extent{Region: r.host, Len: size}, mem.Extent{Region: r.gpu, Len: size}
	if dir == plan.H2D {
		return &mem.Batch{Dst: []mem.Extent{gpu}, Src: []mem.Extent{host}}
	}
	return &mem.Batch{Dst: []mem.Extent{host}, Src: []mem.Extent{gpu}}
}
