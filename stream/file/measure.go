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

// MeasureOptions configure Measure.
type MeasureOptions struct {
	// Budget limits the time for transfers after the first size. Zero: one second.
	Budget time.Duration
	// Progress, if not nil, is called before each measurement.
	Progress func(done, total int, what string)
	// Stream selects the memory and the paths: Device with Copy and CuFile, or only host memory.
	// Other fields are ignored.
	Stream Options
}

// The measured numbers of concurrent transfers, the transfer sizes, and the limits of the scratch
// file.
var (
	measuredDepths = []int{DefaultTransfers, 8}
	measuredSizes  = []int64{4 << 10, 64 << 10, 1 << 20}
)

const (
	scratchBytes = 32 << 20
	// writtenBytes is the approximate limit of all written bytes, to reduce wear of disks. A batch
	// that has begun is completed.
	writtenBytes = 256 << 20
	// freeBytes is the required free space, so that the measurement does not fill the file system.
	freeBytes = 4 * scratchBytes
)

// errSpent is the cause that ends batches in flight when the budget is used up.
var errSpent = errors.New("the measuring budget is used up")

// Measure moves a scratch file of 32 MiB in a directory by every available path, and returns the
// results. During the measurement the file has no name, so no file remains if the process ends. At
// most a few hundred MiB are written. The first size is measured even if the budget is too short.
// When the budget is used up, Measure skips the rest: for each size and depth, all paths have
// results or none. The error wraps ErrNoSpace if the file system has too little space.
func Measure(ctx context.Context, path string, o MeasureOptions) (p Profile, err error) {
	fail := func(err error) (Profile, error) {
		return Profile{}, fmt.Errorf("measure directory %s: %w", path, err)
	}
	f, err := scratch(path, o.Stream.CuFile.Storage)
	if err != nil {
		return fail(err)
	}
	defer func() { err = errors.Join(err, f.Close(context.WithoutCancel(ctx))) }()
	m := &measuring{file: f, o: o.Stream, progress: o.Progress}
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
	m.until = time.Now().Add(budget / 8 * 7) // the rest is a reserve for overruns
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
		return nil, fmt.Errorf("%d MiB are free, measuring needs %d: %w", free>>20, freeBytes>>20, errdefs.ErrNoSpace)
	}
	dir, err := dirfs.OS().OpenDir(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = dir.Close() }() // no file was written through it
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
		// cuFile registers only files with a name. f keeps the error.
		_, _ = f.storage(storage)
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
	until  time.Time // end of the time for all sizes and depths
	filled bool
	points []Point

	progress func(done, total int, what string) // MeasureOptions.Progress
}

// way is a path between the file and one kind of memory.
type way struct {
	path   stream.Path
	stream *Stream
	end    *mem.Region
}

// depth measures all sizes with depth concurrent transfers. depths is the number of depths still to
// measure, including this one. The very first size is measured under ctx, the others under bounded.
func (m *measuring) depth(ctx, bounded context.Context, depth, depths int) (err error) {
	var ways []way
	for _, by := range []stream.Path{stream.PathPosix, stream.PathURing, stream.PathCuFile} {
		if by == stream.PathCuFile && m.file.registered == nil {
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
			// An error of Close replaces errSpent.
			if closed := s.Close(context.WithoutCancel(ctx)); closed != nil {
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
			if total := len(measuredDepths) * len(measuredSizes) * len(ways); m.progress != nil {
				m.progress(total-left/2, total, fmt.Sprintf("%s, %d KiB", w.path, size>>10))
			}
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

// both measures a way in both directions. It returns no points if the way is not supported.
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

// fill writes the whole file once, because reads of holes do not access the disk.
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

// place measures transfers of one size and direction, within its share of the time and of the
// written bytes. left is the number of measurements still to make, including this one.
func (m *measuring) place(ctx context.Context, w way, size int64, write bool, left int) (Point, error) {
	b := m.batch(w.end, size, write)
	begun, bytes := time.Now(), int64(0)
	share := time.Until(m.until) / time.Duration(left)
	// The factor 2 counts paths. Device memory may have a third path.
	most := int64(writtenBytes / (len(measuredDepths) * len(measuredSizes) * 2 * len(m.ends)))
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

// batch returns a batch of transfers of the given size that are not adjacent in the file.
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

// move moves a batch. When ctx ends it begins no further transfers and waits for those in flight,
// because the caller frees their memory.
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
