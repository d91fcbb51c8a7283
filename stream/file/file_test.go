package file_test

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/dirfs"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream"
	"github.com/kvlane/kvlane/stream/file"
	"github.com/kvlane/kvlane/stream/streamtest"
)

// try submits a batch and waits for it.
func try(tb testing.TB, s *file.Stream, dst, src mem.Extent) (stream.Completion, error) {
	tb.Helper()
	t, err := s.Submit(within(tb), &mem.Batch{Dst: []mem.Extent{dst}, Src: []mem.Extent{src}})
	if err != nil {
		tb.Fatal(err)
	}
	err = t.Wait(within(tb))
	return t.Completion(), err
}

func closeAtEnd(tb testing.TB, s *file.Stream) *file.Stream {
	tb.Helper()
	tb.Cleanup(func() {
		if err := s.Close(within(tb)); err != nil {
			tb.Error(err)
		}
	})
	return s
}

// TestModel copies random, mostly misaligned ranges between a file and host and device memory. It
// uses O_DIRECT, buffered I/O and the page cache in turn, and compares all bytes of the file each
// time.
func TestModel(t *testing.T) {
	dev, copies := openSim(t, sim.Options{})
	for seed := range uint64(4) {
		rng := rand.New(rand.NewPCG(seed, 7))
		fs := real(t)
		const n = 10 * file.Align
		r := fs.alloc(t, n)
		files, hosts, devs := fs.memory(), host, streamtest.DeviceMemory(dev)
		own := []*mem.Region{hosts.Alloc(t, n), devs.Alloc(t, n)}
		mems := []streamtest.Memory{hosts, devs}
		model := make([]byte, n)
		files.Write(t, mem.All(r), model)
		paths := []stream.Path{stream.PathNone, stream.PathPosix}
		if s, err := file.Open(file.Options{Path: stream.PathURing}); err == nil {
			paths = append(paths, stream.PathURing)
			_ = s.Close(within(t))
		}
		var streams []*file.Stream
		for _, p := range paths {
			streams = append(streams, closeAtEnd(t, open(t, file.Options{
				Device: dev, Copy: copies, Transfers: 4, ChunkBytes: 2 * file.Align, Chunks: 3, Path: p,
			})))
		}
		place := func(of int64) int64 { // start of a range of the given length
			at := rng.Int64N(n - of + 1)
			if rng.IntN(3) == 0 {
				at &^= file.Align - 1
			}
			return at
		}
		for step := range 120 {
			k := rng.IntN(2)
			size := 1 + rng.Int64N(n/2)
			if rng.IntN(3) == 0 {
				size = file.Align * (1 + rng.Int64N(3))
			}
			e := mem.Extent{Region: r, Off: place(size), Len: size}
			m := mem.Extent{Region: own[k], Off: place(size), Len: size}
			s := streams[rng.IntN(len(streams))]
			if rng.IntN(2) == 0 {
				text := make([]byte, size)
				for i := range text {
					text[i] = byte(rng.Uint32())
				}
				mems[k].Write(t, m, text)
				copy(model[e.Off:], text)
				if _, err := try(t, s, e, m); err != nil {
					t.Fatal(err)
				}
			} else {
				if _, err := try(t, s, m, e); err != nil {
					t.Fatal(err)
				}
				if got := mems[k].Read(t, m); !bytes.Equal(got, model[e.Off:e.Off+size]) {
					t.Fatalf("seed %d, step %d: %d bytes from %d on are wrong", seed, step, size, e.Off)
				}
			}
			if got := files.Read(t, mem.All(r)); !bytes.Equal(got, model) {
				t.Fatalf("seed %d, step %d: the file is wrong", seed, step)
			}
		}
	}
}

// TestNeighboursAreOneTransfer reads device pages that are adjacent in a file.
func TestNeighboursAreOneTransfer(t *testing.T) {
	plan := fault.New(1)
	dev, copies := openSim(t, sim.Options{})
	fs := faulty(t, plan)
	const pages, size = 64, 4096
	r, d := fs.alloc(t, pages*size), streamtest.DeviceMemory(dev).Alloc(t, 2*pages*size)
	fs.memory().Write(t, mem.All(r), make([]byte, pages*size))
	s := closeAtEnd(t, open(t, file.Options{Device: dev, Copy: copies, ChunkBytes: 32 * size, Chunks: 4}))
	b := &mem.Batch{}
	for i := range int64(pages) {
		at := (i*37 + 5) % pages
		b.Dst = append(b.Dst, mem.Extent{Region: d, Off: i * 2 * size, Len: size})
		b.Src = append(b.Src, mem.Extent{Region: r, Off: at * size, Len: size})
	}
	ticket, err := s.Submit(within(t), b)
	if err == nil {
		err = ticket.Wait(within(t))
	}
	if err != nil {
		t.Fatal(err)
	}
	if n := plan.Seen("read"); n != 2 {
		t.Errorf("%d reads of 64 pages in a row, by chunks of 32", n)
	}
	if c := ticket.Completion(); c.Pieces != pages || c.Bytes != pages*size || c.Path != stream.PathPosix {
		t.Errorf("completion %+v", c)
	}
}

func TestShortFile(t *testing.T) {
	dev, copies := openSim(t, sim.Options{})
	fs := real(t)
	const n = 3*file.Align + 100
	r := fs.alloc(t, 4*file.Align)
	fs.memory().Write(t, mem.All(r).Sub(0, n), make([]byte, n))
	ends := map[string]*mem.Region{"host": streamtest.Pageable(t, r.Len()), "device": streamtest.DeviceMemory(dev).Alloc(t, r.Len())}
	for name, end := range ends {
		for _, path := range []stream.Path{stream.PathNone, stream.PathPosix} {
			s := closeAtEnd(t, open(t, file.Options{Device: dev, Copy: copies, Path: path, Chunks: 2}))
			_, err := try(t, s, mem.All(end), mem.All(r))
			if !errors.Is(err, io.ErrUnexpectedEOF) || !strings.Contains(err.Error(), "at byte 12388") {
				t.Errorf("%s: read beyond the end: %v", name, err)
			}
			if _, err := try(t, s, mem.All(end).Sub(0, n), mem.All(r).Sub(0, n)); err != nil {
				t.Errorf("%s: read to the end: %v", name, err)
			}
		}
	}
}

// TestPartialTransfers makes every second read short, as a network file system may.
func TestPartialTransfers(t *testing.T) {
	plan := fault.New(1)
	fs := faulty(t, plan)
	r, end := fs.alloc(t, 100_000), streamtest.Pageable(t, 100_000)
	text := bytes.Repeat([]byte("0123456789"), 10_000)
	fs.memory().Write(t, mem.All(r), text)
	plan.Add(fault.Every("read", 2).Partial(nil))
	plan.Add(fault.Nth("read", 0).Partial(nil))
	s := closeAtEnd(t, open(t, file.Options{ChunkBytes: 4 * file.Align}))
	if _, err := try(t, s, mem.All(end), mem.All(r)); err != nil || !bytes.Equal(end.Bytes(), text) {
		t.Errorf("partial reads: %v", err)
	}
	if plan.Injected() == 0 {
		t.Error("no read was partial")
	}
	// A short write is a failure, and the written bytes are undefined.
	plan.Clear()
	plan.Add(fault.Nth("write", int(plan.Seen("write"))).Partial(unix.ENOSPC))
	if _, err := try(t, s, mem.All(r), mem.All(end)); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("a write that did not fit: %v", err)
	}
}

// TestNthWriteFails fails write N of a batch, for N = 0, 1, 2, ... until no write is left.
func TestNthWriteFails(t *testing.T) {
	plan := fault.New(1)
	fs := faulty(t, plan)
	r, end := fs.alloc(t, 100_000), streamtest.Pageable(t, 100_000)
	s := closeAtEnd(t, open(t, file.Options{ChunkBytes: 4 * file.Align}))
	for n := 0; ; n++ {
		plan.Clear()
		plan.Add(fault.Nth("write", int(plan.Seen("write"))+n).Fail(unix.EIO))
		before := plan.Injected()
		_, err := try(t, s, mem.All(r), mem.All(end))
		if failed := plan.Injected() > before; failed != errors.Is(err, unix.EIO) || !failed && err != nil {
			t.Fatalf("write %d failed: %t; the ticket returns %v", n, failed, err)
		}
		if err == nil {
			if n < 7 {
				t.Errorf("the batch made only %d writes", n)
			}
			return
		}
	}
}

// If the file system refused O_DIRECT, that was not counted.
func TestDefectRefusedDirectIsReportedAndCounted(t *testing.T) {
	fs := real(t)
	fs.direct = refuseDirect
	r, end := fs.alloc(t, 8192), streamtest.Pageable(t, 8192)
	s := closeAtEnd(t, open(t, file.Options{Path: stream.PathPosix}))
	for _, b := range [][2]*mem.Region{{r, end}, {end, r}} {
		c, err := try(t, s, mem.All(b[0]), mem.All(b[1]))
		if err != nil || c.Reason != file.ReasonRefused {
			t.Errorf("completion %+v: %v", c, err)
		}
	}
	if got := s.Stats(); got.Refused != 1 || got.Unopened != 0 {
		t.Errorf("stats %+v", got)
	}
	// For files without a descriptor no refusal is reported.
	plain := faulty(t, nil)
	p := plain.alloc(t, 8192)
	if c, err := try(t, s, mem.All(p), mem.All(end)); err != nil || c.Reason != file.ReasonForced {
		t.Errorf("completion %+v: %v", c, err)
	}
}

// Any error of an open with O_DIRECT was reported as a refusal by the file system.
func TestDefectFailedOpenPassesForARefusal(t *testing.T) {
	fs := real(t)
	fs.direct = func(int) (int, error) { return -1, unix.EMFILE }
	dev, copies := openSim(t, sim.Options{})
	s := closeAtEnd(t, open(t, file.Options{Device: dev, Copy: copies, CuFile: file.CuFileOptions{Storage: openStorage(t, dev)}}))
	r := fs.alloc(t, 8192)
	for _, end := range []*mem.Region{streamtest.Pageable(t, 8192), streamtest.DeviceMemory(dev).Alloc(t, 8192)} {
		if c, err := try(t, s, mem.All(r), mem.All(end)); err != nil || c.Reason != file.ReasonUnopened || !errors.Is(c.GivenUp, unix.EMFILE) {
			t.Errorf("completion %+v: %v", c, err)
		}
	}
	if got := s.Stats(); got.Refused != 0 || got.Unopened != 1 || got.GivenUp != 0 {
		t.Errorf("stats %+v", got)
	}
}

// TestTmpfs copies files of tmpfs, which supports O_DIRECT since Linux 6.6. The kernel's answer is
// reported and counted.
func TestTmpfs(t *testing.T) {
	path := "/dev/shm/kvlane-" + strconv.Itoa(os.Getpid())
	if err := os.Mkdir(path, 0o700); err != nil {
		testkit.Skip(t, "tmpfs", err.Error())
	}
	defer func() { _ = os.RemoveAll(path) }()
	fs := &files{dir: openDir(t, dirfs.OS(), path)}
	r, end, back := fs.alloc(t, 50_000), streamtest.Pageable(t, 50_000), streamtest.Pageable(t, 50_000)
	fd, direct := unix.Open(path+"/"+r.File().Name(), unix.O_RDWR|unix.O_DIRECT|unix.O_CLOEXEC, 0)
	if direct == nil {
		_ = unix.Close(fd)
	}
	for i := range end.Bytes() {
		end.Bytes()[i] = byte(i * 7)
	}
	s := closeAtEnd(t, open(t, file.Options{}))
	c, werr := try(t, s, mem.All(r), mem.All(end))
	_, rerr := try(t, s, mem.All(back), mem.All(r))
	if werr != nil || rerr != nil || !bytes.Equal(end.Bytes(), back.Bytes()) {
		t.Errorf("write: %v, read: %v", werr, rerr)
	}
	if said := c.Reason == file.ReasonRefused; said != (direct != nil) || said != (s.Stats().Refused == 1) {
		t.Errorf("open with O_DIRECT: %v; %+v, stats %+v", direct, c, s.Stats())
	}
}

func TestPageCacheIsTriedFirst(t *testing.T) {
	needPageCache(t)
	fs := real(t)
	r, end := fs.alloc(t, 1<<20), streamtest.Pageable(t, 1<<20)
	fs.memory().Write(t, mem.All(r), make([]byte, 1<<20)) // it is in the page cache now
	s := closeAtEnd(t, open(t, file.Options{}))
	if c, err := try(t, s, mem.All(end), mem.All(r)); err != nil || c.Reason != file.ReasonCached || c.Path != stream.PathPosix {
		t.Errorf("completion %+v: %v", c, err)
	}
	if _, err := try(t, s, mem.All(r), mem.All(end)); err != nil { // with O_DIRECT, which drops it from the page cache
		t.Fatal(err)
	}
	if c, err := try(t, s, mem.All(end), mem.All(r)); err != nil || c.Reason == file.ReasonRefused {
		t.Errorf("after a direct write: %+v: %v", c, err)
	}
}

// Only some of the pages of one read are in the page cache.
func TestPageCacheHasSome(t *testing.T) {
	testkit.SkipRace(t, "the conformance suites run the same goroutines")
	needPageCache(t)
	const pages, batches, patch = 1024, 8, 16 // one of four patches is not in the page cache
	dev, copies := openSim(t, sim.Options{})
	for name, o := range map[string]file.Options{
		"home":   {},
		"uring":  {Profile: byURing(t)},
		"device": {Device: dev, Copy: copies, Transfers: 8},
	} {
		t.Run(name, func(t *testing.T) {
			fs := real(t)
			r, to := fs.alloc(t, pages*file.Align), host
			if o.Device != nil {
				to = streamtest.DeviceMemory(dev)
			}
			end := to.Alloc(t, pages*file.Align)
			text := make([]byte, pages*file.Align)
			rng := rand.New(rand.NewPCG(1, 2))
			for i := range text {
				text[i] = byte(rng.Uint32())
			}
			for off := 0; off < len(text); off += patch * file.Align { // the kernel drops pages only in units that were written together
				fs.memory().Write(t, mem.All(r).Sub(int64(off), patch*file.Align), text[off:][:patch*file.Align])
			}
			s := closeAtEnd(t, open(t, o))
			places := rng.Perm(pages) // each page goes to the place of another one
			for _, some := range []bool{false, true} {
				if some {
					fs.forget(t, r, 4*patch*file.Align, patch*file.Align)
				}
				to.Write(t, mem.All(end), make([]byte, len(text)))
				var tickets []*stream.Ticket
				for i := range batches {
					b := new(mem.Batch)
					for j := i; j < pages; j += batches {
						b.Src = append(b.Src, mem.Extent{Region: r, Off: int64(j) * file.Align, Len: file.Align})
						b.Dst = append(b.Dst, mem.Extent{Region: end, Off: int64(places[j]) * file.Align, Len: file.Align})
					}
					ticket, err := s.Submit(within(t), b)
					if err != nil {
						t.Fatal(err)
					}
					tickets = append(tickets, ticket)
				}
				for _, ticket := range tickets {
					if err := ticket.Wait(within(t)); err != nil {
						t.Fatal(err)
					}
				}
				got := to.Read(t, mem.All(end))
				for j, at := range places {
					if !bytes.Equal(got[at*file.Align:][:file.Align], text[j*file.Align:][:file.Align]) {
						t.Fatalf("with some in the page cache alone: %v: page %d is wrong", some, j)
					}
				}
			}
		})
	}
}

func TestOpenRequiresWhatIsThere(t *testing.T) {
	dev, copies := openSim(t, sim.Options{})
	for name, tt := range map[string]struct {
		o    file.Options
		want error
	}{
		"required, and no cuFile":       {file.Options{Device: dev, Copy: copies, Direct: file.DirectRequire}, errdefs.ErrNotSupported},
		"forced, and no cuFile":         {file.Options{Device: dev, Path: stream.PathCuFile}, errdefs.ErrNotSupported},
		"forced and never":              {file.Options{Device: dev, Path: stream.PathCuFile, Direct: file.DirectNever}, errdefs.ErrInvalid},
		"path of memory":                {file.Options{Path: stream.PathKernel}, errdefs.ErrInvalid},
		"chunks that are not aligned":   {file.Options{ChunkBytes: 1000}, errdefs.ErrInvalid},
		"a stream of copies for nobody": {file.Options{Copy: copies}, errdefs.ErrInvalid},
	} {
		if _, err := file.Open(tt.o); !errors.Is(err, tt.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	s := closeAtEnd(t, open(t, file.Options{}))
	r, d := real(t).alloc(t, 10), streamtest.DeviceMemory(dev).Alloc(t, 10)
	if _, err := s.Submit(within(t), &mem.Batch{Dst: []mem.Extent{mem.All(d)}, Src: []mem.Extent{mem.All(r)}}); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("device memory without a device: %v", err)
	}
}

func TestRequireNeedsTrueGDS(t *testing.T) {
	dev, copies := openSim(t, sim.Options{Storage: sim.StorageModel{Compat: "no nvidia-fs"}})
	storage := openStorage(t, dev)
	fs := real(t)
	r, d := fs.alloc(t, 4096), streamtest.DeviceMemory(dev).Alloc(t, 4096)
	for _, direct := range []file.Direct{file.DirectRequire, file.DirectAuto, file.DirectNever} {
		s := closeAtEnd(t, open(t, file.Options{Device: dev, Copy: copies, Direct: direct, CuFile: file.CuFileOptions{Storage: storage}, Chunks: 2}))
		c, err := try(t, s, mem.All(r), mem.All(d))
		if direct == file.DirectRequire {
			if !errors.Is(err, errdefs.ErrNotSupported) || !strings.Contains(err.Error(), "no nvidia-fs") {
				t.Errorf("open with GDS required: %v", err)
			}
		} else if err != nil || c.Path != stream.PathPosix {
			t.Errorf("%s: %+v: %v", direct, c, err)
		}
	}
}

// TestGivenUp fails a registration. Its batch fails, later batches take another path, and one of
// them reports the reason.
func TestGivenUp(t *testing.T) {
	plan := fault.New(1)
	plan.Add(fault.Nth(sim.OpFileRegister, 1).Fail(nil))
	dev, copies := openSim(t, sim.Options{Faults: plan})
	s := closeAtEnd(t, open(t, file.Options{Device: dev, Copy: copies, CuFile: file.CuFileOptions{Storage: openStorage(t, dev)}, Chunks: 2}))
	fs := real(t)
	d := streamtest.DeviceMemory(dev).Alloc(t, 4096)
	for i := range 4 {
		c, err := try(t, s, mem.All(fs.alloc(t, 4096)), mem.All(d))
		switch {
		case i == 0 && (err != nil || c.Path != stream.PathCuFile || c.Reason != file.ReasonGDS):
			t.Errorf("first batch: %+v: %v", c, err)
		case i == 1 && !errors.Is(err, fault.ErrInjected):
			t.Errorf("a registration that failed: %v", err)
		case i >= 2 && (err != nil || c.Path != stream.PathPosix || (i == 2) != (c.GivenUp != nil)):
			t.Errorf("batch %d: %+v: %v", i, c, err)
		}
	}
	if got := s.Stats(); got.GivenUp != 1 || got.Failed != 1 || got.Batches[stream.PathCuFile] != 1 || got.Batches[stream.PathPosix] != 2 {
		t.Errorf("stats %+v", got)
	}
}
