package file_test

import (
	"context"
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/internal/dirfs"
	"github.com/kvlane/kvlane/internal/dirfs/faultfs"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream"
	streamcopy "github.com/kvlane/kvlane/stream/copy"
	"github.com/kvlane/kvlane/stream/file"
	"github.com/kvlane/kvlane/stream/streamtest"
)

func within(tb testing.TB) context.Context {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(tb.Context()), testkit.Patience())
	tb.Cleanup(cancel)
	return ctx
}

func openDir(tb testing.TB, fs dirfs.FS, path string) dirfs.Dir {
	tb.Helper()
	d, err := fs.OpenDir(path)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := d.Close(); err != nil {
			tb.Error(err)
		}
	})
	return d
}

// refuseDirect simulates a file system without O_DIRECT.
func refuseDirect(int) (int, error) { return -1, unix.EINVAL }

// files is a memory of files in a directory.
type files struct {
	dir    dirfs.Dir
	made   int
	direct func(fd int) (int, error) // nil: open as usual
}

func (f *files) memory() streamtest.Memory {
	base := func(tb testing.TB, e mem.Extent) dirfs.File {
		tb.Helper()
		h, err := f.dir.Open(e.Region.File().Name(), os.O_RDWR)
		if err != nil {
			tb.Fatal(err)
		}
		return h
	}
	return streamtest.Memory{
		Name:  "file",
		Alloc: func(tb testing.TB, bytes int64) *mem.Region { tb.Helper(); return f.alloc(tb, bytes) },
		Write: func(tb testing.TB, to mem.Extent, b []byte) {
			tb.Helper()
			h := base(tb, to)
			if _, err := h.WriteAt(b, to.Off); err != nil {
				tb.Fatal(err)
			}
			_ = h.Close()
		},
		Read: func(tb testing.TB, from mem.Extent) []byte {
			tb.Helper()
			h := base(tb, from)
			b := make([]byte, from.Len)
			if n, err := h.ReadAt(b, from.Off); n < len(b) {
				tb.Fatal(err)
			}
			_ = h.Close()
			return b
		},
	}
}

func (f *files) alloc(tb testing.TB, bytes int64) *mem.Region {
	tb.Helper()
	f.made++
	name := fmt.Sprintf("f%d", f.made)
	h, err := f.dir.Open(name, os.O_RDWR|os.O_CREATE)
	if err != nil {
		tb.Fatal(err)
	}
	var x *file.File
	if f.direct != nil {
		x, err = file.NewWith(h, name, f.direct)
	} else {
		x, err = file.New(h, name)
	}
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := x.Close(within(tb)); err != nil {
			tb.Error(err)
		}
	})
	r, err := x.Region(bytes)
	if err != nil {
		tb.Fatal(err)
	}
	return r
}

// forget drops the first bytes of each stride of r's file from the page cache.
func (f *files) forget(tb testing.TB, r *mem.Region, stride, bytes int64) {
	tb.Helper()
	h, err := f.dir.Open(r.File().Name(), os.O_RDWR)
	if err != nil {
		tb.Fatal(err)
	}
	defer h.Close()
	fd, _ := h.(dirfs.Descriptor) // files of the operating system have one
	err = h.Sync()
	for off := int64(0); off < r.Len() && err == nil; off += stride {
		err = unix.Fadvise(fd.Descriptor(), off, bytes, unix.FADV_DONTNEED)
	}
	if err != nil {
		tb.Fatal(err)
	}
}

// host is host memory that no device has registered.
var host = streamtest.Memory{
	Name:  "host",
	Alloc: func(tb testing.TB, bytes int64) *mem.Region { tb.Helper(); return streamtest.Pageable(tb, bytes) },
	Write: func(_ testing.TB, to mem.Extent, b []byte) { copy(to.Bytes(), b) },
	Read:  func(_ testing.TB, from mem.Extent) []byte { return append([]byte(nil), from.Bytes()...) },
}

// env returns the environment of the conformance suite, with files in place of the slots, and
// memory B.
func env(fs *files, b streamtest.Memory, o file.Options) streamtest.Env {
	return streamtest.Env{
		Open: func(tb testing.TB, depth int) stream.Stream {
			tb.Helper()
			o := o
			o.Depth = depth
			return open(tb, o)
		},
		A: fs.memory(), B: b, Unordered: true, Path: o.Path,
	}
}

func open(tb testing.TB, o file.Options) *file.Stream {
	tb.Helper()
	s, err := file.Open(o)
	if err != nil {
		tb.Fatal(err)
	}
	return s
}

// openSim opens a simulated device and a copy stream.
func openSim(tb testing.TB, o sim.Options) (*sim.Device, stream.Stream) {
	tb.Helper()
	dev, err := sim.Open(o)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := dev.Close(); err != nil {
			tb.Error(err)
		}
	})
	return dev, openCopies(tb, dev)
}

// openCopies opens a copy stream and closes it when the test ends.
func openCopies(tb testing.TB, dev device.Device) *streamcopy.Stream {
	tb.Helper()
	s, err := streamcopy.Open(dev, streamcopy.Options{})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := s.Close(within(tb)); err != nil {
			tb.Error(err)
		}
	})
	return s
}

// faulty returns files that fail as plan demands.
func faulty(tb testing.TB, plan *fault.Plan) *files {
	tb.Helper()
	return &files{dir: openDir(tb, faultfs.New(dirfs.OS(), plan, nil), tb.TempDir())}
}

// openStorage opens the storage of a device.
func openStorage(tb testing.TB, dev device.StorageOpener) device.Storage {
	tb.Helper()
	s, err := dev.OpenStorage(device.StorageOptions{})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := s.Close(); err != nil {
			tb.Error(err)
		}
	})
	return s
}

var devOptions device.AllocOptions
