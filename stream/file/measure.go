package file

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/dirfs"
	"github.com/kvlane/kvlane/internal/sys/hostmem"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream"
)

// MeasureOptions says what is measured.
type MeasureOptions struct {
	// Budget is about how long it may take. Zero: a second.
	Budget time.Duration
	// Stream has the ends and the ways: its Device with Copy and CuFile, or memory of the host alone. The rest does not matter.
	Stream Options
}

// What is measured: sizes of transfers, how many at a time, and the scratch file that they have room in.
var (
	measuredSizes  = []int64{4 << 10, 64 << 10, 1 << 20}
	measuredDepths = []int{4, 16, 32}
)

const scratchBytes = 32 << 20

// Measure moves a scratch file of 32 MiB in a directory by every path there is, and returns what each did. The file has no name
// by the time that it is measured, so nothing is left behind.
func Measure(ctx context.Context, path string, o MeasureOptions) (p Profile, err error) {
	fail := func(err error) (Profile, error) {
		return Profile{}, fmt.Errorf("measure directory %s: %w", path, err)
	}
	f, err := scratch(path)
	if err != nil {
		return fail(err)
	}
	defer func() { err = errors.Join(err, f.Close(ctx)) }()
	m := &measuring{file: f, o: o.Stream}
	if m.region, err = f.Region(scratchBytes); err != nil {
		return fail(err)
	}
	host, err := hostmem.Alloc(scratchBytes / 2)
	if err != nil {
		return fail(err)
	}
	defer func() { err = errors.Join(err, hostmem.Free(host)) }()
	end, err := hostmem.Region(host)
	if err != nil {
		return fail(err)
	}
	ends := []*mem.Region{end}
	if dev := o.Stream.Device; dev != nil {
		r, err := dev.Alloc(scratchBytes/2, device.AllocOptions{})
		if err != nil {
			return fail(err)
		}
		defer func() { err = errors.Join(err, dev.Free(r)) }()
		ends = append(ends, r)
	}
	paths := []stream.Path{stream.PathPosix, stream.PathURing, stream.PathCuFile}
	each := cmp.Or(o.Budget, time.Second) / time.Duration(2*len(measuredSizes)*len(measuredDepths)*len(ends)*(len(paths)-1))
	for _, end := range ends {
		for _, by := range paths {
			if by == stream.PathCuFile && (end.CPU() != 0 || o.Stream.CuFile.Storage == nil) {
				continue
			}
			points, err := m.path(ctx, by, end, each)
			if errors.Is(err, errdefs.ErrNotSupported) {
				continue
			}
			if err != nil {
				return fail(err)
			}
			p.Points = append(p.Points, points...)
		}
	}
	return p, nil
}

func scratch(path string) (*File, error) {
	dir, err := dirfs.OS().OpenDir(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = dir.Close() }() // nothing was written by it
	name := fmt.Sprintf(".kvlane-measure-%d", os.Getpid())
	base, err := dir.Open(name, os.O_RDWR|os.O_CREATE|os.O_EXCL)
	if err != nil {
		return nil, err
	}
	if err := dir.Remove(name); err != nil {
		return nil, errors.Join(err, base.Close())
	}
	f, err := New(base, path+"/"+name)
	if err != nil {
		return nil, errors.Join(err, base.Close())
	}
	return f, nil
}

type measuring struct {
	file   *File
	region *mem.Region
	o      Options
	filled bool
}

// path measures one path to one end, at all sizes and depths, both ways.
func (m *measuring) path(ctx context.Context, by stream.Path, end *mem.Region, each time.Duration) (points []Point, err error) {
	for _, depth := range measuredDepths {
		o := m.o
		o.Path, o.Transfers, o.Profile, o.Direct = by, depth, nil, DirectAuto
		s, err := Open(o)
		if err != nil {
			return nil, err
		}
		ps, err := m.depth(ctx, s, end, each)
		if err = errors.Join(err, s.Close(ctx)); err != nil {
			return nil, err
		}
		for _, p := range ps {
			p.Path, p.Depth = by.String(), depth
			points = append(points, p)
		}
	}
	return points, nil
}

func (m *measuring) depth(ctx context.Context, s *Stream, end *mem.Region, each time.Duration) (points []Point, err error) {
	if !m.filled { // holes are read from nowhere
		for at := int64(0); at < scratchBytes; at += end.Len() {
			file := mem.Extent{Region: m.region, Off: at, Len: end.Len()}
			if _, err := m.move(ctx, s, &mem.Batch{Dst: []mem.Extent{file}, Src: []mem.Extent{mem.All(end)}}); err != nil {
				return nil, err
			}
		}
		m.filled = true
	}
	for _, write := range []bool{true, false} {
		for _, size := range measuredSizes {
			b := m.batch(end, size, write)
			begun, bytes := time.Now(), int64(0)
			for first := true; first || time.Since(begun) < each; first = false {
				n, err := m.move(ctx, s, b)
				if err != nil {
					return nil, err
				}
				bytes += n
			}
			points = append(points, Point{
				Dev: m.file.info.Device, Write: write, Device: end.CPU() == 0, Bytes: size,
				GBps: float64(bytes) / time.Since(begun).Seconds() / 1e9,
			})
		}
	}
	return points, nil
}

// batch has transfers of that size that are no neighbours in the file.
func (m *measuring) batch(end *mem.Region, size int64, write bool) *mem.Batch {
	const most = 64
	b := &mem.Batch{}
	for i := range min(most, end.Len()/size) {
		b.Dst = append(b.Dst, mem.Extent{Region: end, Off: i * size, Len: size})
		b.Src = append(b.Src, mem.Extent{Region: m.region, Off: i * 2 * size, Len: size})
	}
	if write {
		b.Dst, b.Src = b.Src, b.Dst
	}
	return b
}

func (m *measuring) move(ctx context.Context, s *Stream, b *mem.Batch) (int64, error) {
	t, err := s.Submit(ctx, b)
	if err != nil {
		return 0, err
	}
	<-t.Done() // its memory is freed afterwards, whatever ctx says
	return b.Bytes(), cmp.Or(t.Err(), ctx.Err())
}
