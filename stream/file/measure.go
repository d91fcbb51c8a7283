package file

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/dirfs"
	"github.com/kvlane/kvlane/internal/sys/hostmem"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream"
)

// MeasureOptions says what is measured.
type MeasureOptions struct {
	// Budget is how long moving bytes may take, after the first size. Zero: a second.
	Budget time.Duration
	// Stream has the ends and the ways: its Device with Copy and CuFile, or memory of the host alone. The rest does not matter.
	Stream Options
}

// What is measured: how many transfers at a time, sizes of transfers, and the scratch file that they have room in.
var (
	measuredDepths = []int{DefaultTransfers, 8}
	measuredSizes  = []int64{4 << 10, 64 << 10, 1 << 20}
)

const (
	scratchBytes = 32 << 20
	// writtenBytes is about what is written in all, however fast that goes: it wears disks out. A batch is finished.
	writtenBytes = 256 << 20
	// freeBytes is what the file system must have room for, so that measuring is not what fills it.
	freeBytes = 4 * scratchBytes
)

// errSpent ends what is in flight when the budget is spent.
var errSpent = errors.New("the budget for measuring is spent")

// Measure moves a scratch file of 32 MiB in a directory by every path there is, and returns what
// each did. The file has no name by the time that it is measured, so nothing is left behind. A few
// hundred MiB are written at most. The first size is measured even if the budget is too short. When
// the budget is spent Measure leaves out the rest: every size and depth has figures of all paths,
// or none. If the file system has too little space the error wraps ErrNoSpace.
func Measure(ctx context.Context, path string, o MeasureOptions) (p Profile, err error) {
	fail := func(err error) (Profile, error) {
		return Profile{}, fmt.Errorf("measure directory %s: %w", path, err)
	}
	f, err := scratch(path, o.Stream.CuFile.Storage)
	if err != nil {
		return fail(err)
	}
	defer func() { err = errors.Join(err, f.Close(context.WithoutCancel(ctx))) }()
	m := &measuring{file: f, o: o.Stream, gds: f.registered != nil && f.registered.Mode().Direct}
	if m.region, err = f.Region(scratchBytes); err != nil {
		return fail(err)
	}
	host, err := hostmem.AllocLarge(scratchBytes / 2)
	if err != nil {
		return fail(err)
	}
	defer func() { err = errors.Join(err, hostmem.Free(host)) }()
	end, err := hostmem.Region(host)
	if err != nil {
		return fail(err)
	}
	m.ends = []*mem.Region{end}
	if dev := o.Stream.Device; dev != nil {
		r, err := dev.Alloc(scratchBytes/2, device.AllocOptions{})
		if err != nil {
			return fail(err)
		}
		defer func() { err = errors.Join(err, dev.Free(r)) }()
		m.ends = append(m.ends, r)
	}
	budget := cmp.Or(o.Budget, time.Second)
	m.until = time.Now().Add(budget / 8 * 7) // the rest is for what takes longer than its share
	bounded, cancel := context.WithTimeoutCause(ctx, budget, errSpent)
	defer cancel()
	for i, depth := range measuredDepths {
		if err = m.depth(ctx, bounded, depth, len(measuredDepths)-i); err != nil {
			break
		}
	}
	if err != nil && !errors.Is(err, errSpent) {
		return fail(err)
	}
	return Profile{Points: m.points}, nil
}

func scratch(path string, storage device.Storage) (*File, error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(path, &fs); err != nil {
		return nil, fmt.Errorf("statfs: %w", err)
	}
	if free := int64(fs.Bavail) * fs.Bsize; fs.Blocks > 0 && free < freeBytes {
		return nil, fmt.Errorf("%d MiB are free, and measuring wants %d: %w", free>>20, freeBytes>>20, errdefs.ErrNoSpace)
	}
	dir, err := dirfs.OS().OpenDir(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = dir.Close() }() // nothing was written by it
	name := fmt.Sprintf(".kvlane-measure-%016x", rand.Uint64())
	base, err := dir.Open(name, os.O_RDWR|os.O_CREATE|os.O_EXCL)
	if err != nil {
		return nil, err
	}
	f, err := New(base, path+"/"+name)
	if err != nil {
		return nil, errors.Join(err, dir.Remove(name), base.Close())
	}
	if storage != nil {
		_, _ = f.storage(storage) // which finds no file without a name; a failure is remembered
	}
	if err := dir.Remove(name); err != nil {
		return nil, errors.Join(err, f.Close(context.Background()))
	}
	return f, nil
}

type measuring struct {
	file   *File
	region *mem.Region
	ends   []*mem.Region
	o      Options
	gds    bool      // cuFile has the device reach the file system itself, which alone it is chosen for
	until  time.Time // what each size and depth has a share in
	filled bool
	points []Point
}

// way is a path to an end.
type way struct {
	path   stream.Path
	stream *Stream
	end    *mem.Region
}

// depth measures all sizes with so many transfers at a time. depths are yet to be measured, with
// this one. The first size of all is measured under ctx, the others under bounded.
func (m *measuring) depth(ctx, bounded context.Context, depth, depths int) (err error) {
	var ways []way
	for _, by := range []stream.Path{stream.PathPosix, stream.PathURing, stream.PathCuFile} {
		if by == stream.PathCuFile && !m.gds {
			continue
		}
		o := m.o
		o.Path, o.Transfers, o.Profile, o.Direct = by, depth, nil, DirectAuto
		s, err := Open(o)
		if errors.Is(err, errdefs.ErrNotSupported) {
			continue
		}
		if err != nil {
			return err
		}
		defer func() {
			if closed := s.Close(context.WithoutCancel(ctx)); closed != nil { // errSpent is no reason to pass over it
				err = closed
			}
		}()
		for _, end := range m.ends {
			if by != stream.PathCuFile || end.CPU() == 0 {
				ways = append(ways, way{by, s, end})
			}
		}
	}
	if err := m.fill(ctx, ways[0]); err != nil {
		return err
	}
	left := depths * len(measuredSizes) * len(ways) * 2
	for _, size := range measuredSizes {
		if len(m.points) > 0 {
			ctx = bounded
		}
		var points []Point
		for _, w := range ways {
			both, err := m.both(ctx, w, size, left)
			if err != nil {
				return err
			}
			for _, p := range both {
				p.Path, p.Depth = w.path.String(), depth
				points = append(points, p)
			}
			left -= 2
		}
		m.points = append(m.points, points...)
	}
	return nil
}

// both measures a way in both directions. Where it cannot be gone there are no points.
func (m *measuring) both(ctx context.Context, w way, size int64, left int) (points []Point, err error) {
	for i, write := range []bool{true, false} {
		p, err := m.place(ctx, w, size, write, left-i)
		if errors.Is(err, errdefs.ErrNotSupported) {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		points = append(points, p)
	}
	return points, nil
}

// fill writes all of the file, once: holes are read from nowhere.
func (m *measuring) fill(ctx context.Context, w way) error {
	for at := int64(0); at < scratchBytes && !m.filled; at += w.end.Len() {
		file := mem.Extent{Region: m.region, Off: at, Len: w.end.Len()}
		if _, err := move(ctx, w.stream, &mem.Batch{Dst: []mem.Extent{file}, Src: []mem.Extent{mem.All(w.end)}}); err != nil {
			return err
		}
	}
	m.filled = true
	return nil
}

// place measures transfers of one size, in one direction, for its share of the time and of the writing: left are yet to come.
func (m *measuring) place(ctx context.Context, w way, size int64, write bool, left int) (Point, error) {
	b := m.batch(w.end, size, write)
	begun, bytes := time.Now(), int64(0)
	share := time.Until(m.until) / time.Duration(left)
	most := int64(writtenBytes / (len(measuredDepths) * len(measuredSizes) * 2 * len(m.ends))) // by two paths, or three to a device
	for bytes == 0 || time.Since(begun) < share && (!write || bytes < most) {
		n, err := move(ctx, w.stream, b)
		if err != nil {
			return Point{}, err
		}
		bytes += n
	}
	return Point{
		Dev: m.file.info.Device, Write: write, Device: w.end.CPU() == 0, Bytes: size,
		GBps: float64(bytes) / time.Since(begun).Seconds() / 1e9,
	}, nil
}

// batch has transfers of that size that are no neighbours in the file.
func (m *measuring) batch(end *mem.Region, size int64, write bool) *mem.Batch {
	const most = 2 * DefaultTransfers
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

// move has a batch moved. When ctx ends no more of it is begun, and what is in flight is waited for: its memory is freed afterwards.
func move(ctx context.Context, s *Stream, b *mem.Batch) (int64, error) {
	t, err := s.Submit(ctx, b)
	if err != nil {
		return 0, err
	}
	defer context.AfterFunc(ctx, t.Cancel)()
	<-t.Done()
	if ctx.Err() != nil {
		return 0, context.Cause(ctx)
	}
	return b.Bytes(), t.Err()
}
