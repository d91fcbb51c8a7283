package doctor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream"
)

const (
	// probeBytes is the number of bytes that a probe copies in each direction. They are two pieces
	// with a gap, so that a batch has two copies.
	probeBytes = 8 << 10
	// probeTimeout is the time limit for one path. Working devices take microseconds.
	probeTimeout = 10 * time.Second
)

// Opener opens a stream on a device that uses one path for all its copies.
type Opener func(dev device.Device, path stream.Path) (stream.Stream, error)

// ProbeDevice tries each copy path of dev. It copies a few KiB to the device and back and compares
// them, so an ability is reported only if it works.
func ProbeDevice(ctx context.Context, dev device.Device, open Opener) Probe {
	var p Probe
	for _, a := range p.abilities() {
		*a.found = Answered(a.try(ctx, dev, open), "a newer NVIDIA driver")
	}
	return p
}

// NICs are RDMA NICs near a device. *gdr.NICs implements it.
type NICs interface {
	OpenStream() (stream.Stream, error)
	registrar
}

// registrar registers memory before streams use it.
type registrar interface {
	Register(regions ...*mem.Region) error
	Unregister(ctx context.Context, regions ...*mem.Region) error
}

// unregistered is a registrar for streams that need no registration.
type unregistered struct{}

func (unregistered) Register(...*mem.Region) error                    { return nil }
func (unregistered) Unregister(context.Context, ...*mem.Region) error { return nil }

// ProbeNICs copies a few KiB to dev and back with NICs. path is the path that the completions must
// report.
func ProbeNICs(ctx context.Context, dev device.Device, nics NICs, path stream.Path) error {
	return tryPath(ctx, dev, nics, nics.OpenStream, path, roundTrip)
}

// ability is a feature that a probe tries.
type ability struct {
	name  string
	found *Finding
	try   func(ctx context.Context, dev device.Device, open Opener) error
}

func (p *Probe) abilities() []ability {
	by := func(name string, path stream.Path, found *Finding, try trial) ability {
		return ability{name, found, func(ctx context.Context, dev device.Device, open Opener) error {
			return tryPath(ctx, dev, unregistered{}, func() (stream.Stream, error) { return open(dev, path) }, path, try)
		}}
	}
	path := func(path stream.Path, found *Finding) ability { return by(path.String(), path, found, roundTrip) }
	return []ability{
		path(stream.PathCopyEngine, &p.CopyEngine),
		path(stream.PathKernel, &p.Kernel),
		path(stream.PathStaged, &p.Staged),
		{"batched copies", &p.Batch, batched},
		by("checksums", stream.PathKernel, &p.Sums, summed),
	}
}

// batched returns an error if queues of dev do not support many copies in one call.
func batched(ctx context.Context, dev device.Device, _ Opener) error {
	q, err := dev.OpenQueue(device.QueueOptions{})
	if err != nil {
		return fmt.Errorf("open queue: %w", err)
	}
	if _, ok := q.(device.BatchCopier); !ok {
		err = fmt.Errorf("its driver has no batched copies: %w", errdefs.ErrNotSupported)
	}
	return errors.Join(err, q.Close(ctx))
}

// trial tests a stream. All batches must use path.
type trial func(ctx context.Context, s stream.Stream, host, gpu *mem.Region, path stream.Path) error

// tryPath opens a stream and calls try with it and with memory registered by reg. If the stream
// cannot be closed, the memory is not freed.
func tryPath(ctx context.Context, dev device.Device, reg registrar, open func() (stream.Stream, error), path stream.Path, try trial) (err error) {
	s, err := open()
	if err != nil {
		return fmt.Errorf("open a %s stream: %w", path, err)
	}
	var host, gpu *mem.Region
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), probeTimeout)
		defer cancel()
		rest := s.Close(ctx)
		if rest == nil && gpu != nil {
			rest = reg.Unregister(ctx, host, gpu)
		}
		for _, r := range []*mem.Region{gpu, host} {
			if rest == nil && r != nil {
				rest = dev.Free(r)
			}
		}
		err = errors.Join(err, rest)
	}()
	if host, err = dev.AllocHost(2 * probeBytes); err != nil {
		return fmt.Errorf("allocate pinned memory: %w", err)
	}
	if gpu, err = dev.Alloc(2*probeBytes, device.AllocOptions{}); err != nil {
		return fmt.Errorf("allocate device memory: %w", err)
	}
	if err := reg.Register(host, gpu); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	return try(ctx, s, host, gpu, path)
}

// roundTrip copies the first half of host to gpu, and from gpu to the second half of host, in two
// pieces each.
func roundTrip(ctx context.Context, s stream.Stream, host, gpu *mem.Region, path stream.Path) error {
	want := host.Bytes()[:probeBytes]
	for i := range want {
		want[i] = byte(device.Mix64(uint64(i)))
	}
	const piece = probeBytes / 2
	halves := func(r *mem.Region, off, stride int64) []mem.Extent {
		return []mem.Extent{{Region: r, Off: off, Len: piece}, {Region: r, Off: off + stride, Len: piece}}
	}
	for _, b := range []*mem.Batch{
		{Dst: halves(gpu, 0, probeBytes), Src: halves(host, 0, piece)},
		{Dst: halves(host, probeBytes, piece), Src: halves(gpu, 0, probeBytes)},
	} {
		if _, err := carry(ctx, s, b, path); err != nil {
			return err
		}
	}
	if !bytes.Equal(want, host.Bytes()[probeBytes:]) {
		return fmt.Errorf("copy %d bytes by %s: read back wrong bytes", probeBytes, path)
	}
	return nil
}

// carry copies b with s. It returns an error if the copy used another path.
func carry(ctx context.Context, s stream.Stream, b *mem.Batch, path stream.Path) (stream.Completion, error) {
	t, err := s.Submit(ctx, b)
	if err != nil {
		return stream.Completion{}, fmt.Errorf("submit to the %s stream: %w", path, err)
	}
	if err := t.Wait(ctx); err != nil {
		return stream.Completion{}, fmt.Errorf("copy %d bytes by %s: %w", b.Bytes(), path, err)
	}
	c := t.Completion()
	if c.Path != path {
		return c, fmt.Errorf("copy by %s: the stream used %s (%s)", path, c.Path, c.Reason)
	}
	return c, nil
}

// summed copies a leaf to gpu and compares the checksum that the copy computed with that of the
// leaf.
func summed(ctx context.Context, s stream.Stream, host, gpu *mem.Region, path stream.Path) error {
	leaf := host.Bytes()[:mem.LeafBytes]
	for i := range leaf {
		leaf[i] = byte(device.Mix64(uint64(i)))
	}
	var sum [1]uint64
	c, err := carry(ctx, s, &mem.Batch{Paged: &mem.Paged{Dir: mem.ToPages, Sums: sum[:], Groups: []mem.PageGroup{{
		Planes: []mem.Plane{{Region: gpu, Stride: mem.LeafBytes, Bytes: mem.LeafBytes}},
		Slots:  mem.Slots{Region: host, Stride: mem.LeafBytes},
		Pairs:  []mem.PageSlot{{}},
	}}}}, path)
	switch want := block.SumLeaf(leaf); {
	case err != nil:
		return err
	case !c.Summed:
		return fmt.Errorf("this GPU has no kernel for checksums: %w", errdefs.ErrNotSupported)
	case sum[0] != want:
		return fmt.Errorf("checksum %d bytes by %s: found %016x, expected %016x", len(leaf), path, sum[0], want)
	}
	return nil
}
