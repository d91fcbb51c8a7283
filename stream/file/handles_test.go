package file_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"sync"
	"testing"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/dirfs"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream"
	"github.com/kvlane/kvlane/stream/file"
	"github.com/kvlane/kvlane/stream/streamtest"
)

// cache is a directory with handles of its files.
type cache struct {
	testing.TB
	dir dirfs.Dir
	h   *file.Handles
	s   *file.Stream
}

func newCache(tb testing.TB, maximum int) *cache {
	tb.Helper()
	c := &cache{TB: tb, dir: openDir(tb, dirfs.OS(), tb.TempDir()), h: file.NewHandles(maximum), s: open(tb, file.Options{})}
	tb.Cleanup(func() {
		if err := errors.Join(c.s.Close(within(tb)), c.h.Close(within(tb))); err != nil {
			tb.Error(err)
		}
	})
	return c
}

func (c *cache) write(name, text string) {
	c.Helper()
	f, err := c.dir.Open(name, os.O_RDWR|os.O_CREATE|os.O_TRUNC)
	if err != nil {
		c.Fatal(err)
	}
	if _, err := f.WriteAt([]byte(text), 0); err != nil {
		c.Fatal(err)
	}
	_ = f.Close()
}

func (c *cache) acquire(name string) *file.Handle {
	c.Helper()
	h, err := c.h.Acquire(within(c), c.dir, name, os.O_RDWR)
	if err != nil {
		c.Fatal(err)
	}
	return h
}

// holds checks the content of a handle's file.
func (c *cache) holds(h *file.Handle, want string) {
	c.Helper()
	r := streamtest.Pageable(c, int64(len(want)))
	t, err := c.s.Submit(within(c), &mem.Batch{Dst: []mem.Extent{mem.All(r)}, Src: []mem.Extent{mem.All(h.Region()).Sub(0, r.Len())}})
	if err == nil {
		err = t.Wait(within(c))
	}
	if err != nil || string(r.Bytes()) != want {
		c.Errorf("the file holds %q, want %q: %v", r.Bytes(), want, err)
	}
}

func (c *cache) stats(want file.HandleStats) {
	c.Helper()
	if got := c.h.Stats(); got != want {
		c.Errorf("stats %+v, want %+v", got, want)
	}
}

func TestDefectHandlesKeyedByDescriptor(t *testing.T) {
	c := newCache(t, 1)
	c.write("a", "first")
	c.write("b", "other")
	a := c.acquire("a")
	a.Release()
	b := c.acquire("b") // a is evicted, and b may get its descriptor numbers
	c.holds(b, "other")
	a = c.acquire("a")
	c.holds(a, "first")
	c.holds(b, "other")
	a.Release()
	b.Release()
}

func TestDefectReferencesCountedTwice(t *testing.T) {
	c := newCache(t, 1)
	c.write("a", "text")
	first, second := c.acquire("a"), c.acquire("a")
	c.stats(file.HandleStats{Open: 1, Held: 1, Hits: 1, Opens: 1})
	first.Release()
	first.Release() // has no effect
	c.stats(file.HandleStats{Open: 1, Held: 1, Hits: 1, Opens: 1})
	c.holds(second, "text")
	second.Release()
	c.stats(file.HandleStats{Open: 1, Held: 0, Hits: 1, Opens: 1})
	c.write("b", "other")
	c.acquire("b").Release() // a is idle, so it is evicted
	c.stats(file.HandleStats{Open: 1, Held: 0, Hits: 1, Opens: 2, Evictions: 1})
}

func TestDefectHandlesEvictedInUse(t *testing.T) {
	c := newCache(t, 2)
	var held []*file.Handle
	for _, name := range []string{"a", "b", "c", "d"} {
		c.write(name, "text of "+name)
		held = append(held, c.acquire(name))
	}
	c.stats(file.HandleStats{Open: 4, Held: 4, Opens: 4})
	for i, name := range []string{"a", "b", "c", "d"} {
		c.holds(held[i], "text of "+name)
		held[i].Release()
	}
	c.stats(file.HandleStats{Open: 2, Opens: 4, Evictions: 2})
	c.acquire("d").Release() // used last, so it is kept
	c.stats(file.HandleStats{Open: 2, Opens: 4, Evictions: 2, Hits: 1})
}

// A file stays open while a batch uses it, even after its handle is released.
func TestHandlesStayWhileBatchesMove(t *testing.T) {
	c := newCache(t, 1)
	c.write("a", "some text")
	c.write("b", "other")
	a := c.acquire("a")
	g := make(gate)
	r := streamtest.Pageable(t, 9)
	ticket, err := c.s.Submit(within(t), &mem.Batch{Dst: []mem.Extent{mem.All(r)}, Src: []mem.Extent{mem.All(a.Region())}, After: []mem.Dependency{g}})
	if err != nil {
		t.Fatal(err)
	}
	a.Release()
	c.acquire("b").Release()
	c.acquire("a").Release()
	c.stats(file.HandleStats{Open: 1, Hits: 1, Opens: 2, Evictions: 1}) // b was evicted
	close(g)
	if err := ticket.Wait(within(t)); err != nil || string(r.Bytes()) != "some text" {
		t.Errorf("%q: %v", r.Bytes(), err)
	}
	c.acquire("b").Release()
	if s := c.h.Stats(); s.Open != 1 {
		t.Errorf("stats %+v", s)
	}
}

type gate chan struct{}

func (g gate) Done() <-chan struct{} { return g }
func (g gate) Err() error            { return nil }

func TestHandlesSurviveRenameAndUnlink(t *testing.T) {
	c := newCache(t, 8)
	c.write("a", "old")
	old := c.acquire("a")
	if err := c.dir.Rename("a", "b", false); err != nil {
		t.Fatal(err)
	}
	if _, err := c.h.Acquire(within(t), c.dir, "a", os.O_RDWR); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("acquire a removed name: %v", err)
	}
	c.write("a", "new")
	fresh := c.acquire("a")
	c.holds(old, "old")
	c.holds(fresh, "new")
	if err := errors.Join(c.dir.Remove("a"), c.dir.Remove("b")); err != nil {
		t.Fatal(err)
	}
	c.holds(old, "old")
	c.holds(fresh, "new")
	old.Release()
	c.stats(file.HandleStats{Open: 1, Held: 1, Opens: 2}) // it has no name, so it cannot be acquired again
	fresh.Release()
}

func TestHandlesGrow(t *testing.T) {
	c := newCache(t, 8)
	c.write("a", "text")
	c.acquire("a").Release()
	c.write("a", "longer text")
	h := c.acquire("a")
	defer h.Release()
	if n := h.Region().Len(); n != 11 {
		t.Errorf("%d bytes", n)
	}
	c.stats(file.HandleStats{Open: 1, Held: 1, Hits: 1, Opens: 1})
}

func TestHandlesOpenOnce(t *testing.T) {
	c := newCache(t, 8)
	c.write("a", "text")
	var all sync.WaitGroup
	for range 32 {
		all.Go(func() {
			h := c.acquire("a")
			c.holds(h, "text")
			h.Release()
		})
	}
	all.Wait()
	c.stats(file.HandleStats{Open: 1, Hits: 31, Opens: 1})
}

// An open file was acquired in its old state although the flags required a new file.
func TestDefectHitIgnoresHowItIsOpened(t *testing.T) {
	c := newCache(t, 8)
	c.write("a", "old text")
	c.acquire("a").Release()
	if h, err := c.h.Acquire(within(t), c.dir, "a", os.O_RDWR|os.O_CREATE|os.O_EXCL); !errors.Is(err, fs.ErrExist) {
		t.Errorf("with O_EXCL: %v", err)
		if err == nil {
			h.Release()
		}
	}
	h, err := c.h.Acquire(within(t), c.dir, "a", os.O_RDWR|os.O_TRUNC)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := c.dir.Stat("a"); err != nil || info.Bytes != 0 || h.Region().Len() != 1 {
		t.Errorf("with O_TRUNC: %d bytes, a region of %d: %v", info.Bytes, h.Region().Len(), err)
	}
	h.Release()
	c.stats(file.HandleStats{Open: 1, Hits: 1, Opens: 1})
}

// A removed file that a batch used when its handle was released stayed open until it was evicted.
func TestDefectRemovedFileStaysOpen(t *testing.T) {
	c := newCache(t, 8)
	c.write("a", "text")
	c.write("b", "text")
	h, started := c.acquire("a"), make(gate)
	r := streamtest.Pageable(t, 4)
	ticket, err := c.s.Submit(within(t), &mem.Batch{
		Dst: []mem.Extent{mem.All(r)}, Src: []mem.Extent{mem.All(h.Region())}, After: []mem.Dependency{started},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.dir.Remove("a"); err != nil {
		t.Fatal(err)
	}
	c.write("a", "another")
	c.acquire("a").Release() // detects that the name belongs to another file
	h.Release()
	c.stats(file.HandleStats{Open: 2, Opens: 2})
	close(started)
	if err := ticket.Wait(within(t)); err != nil {
		t.Error(err)
	}
	c.acquire("b").Release()
	c.stats(file.HandleStats{Open: 2, Opens: 3})
}

// slowStorage is a storage whose files are in use at the first attempt to close them.
type slowStorage struct{ device.Storage }

type slowFile struct {
	device.StorageFile
	tries int
}

func (s slowStorage) Register(fd int) (device.StorageFile, error) {
	f, err := s.Storage.Register(fd)
	return &slowFile{StorageFile: f}, err
}

func (f *slowFile) Close(ctx context.Context) error {
	if f.tries++; f.tries == 1 {
		return context.DeadlineExceeded
	}
	return f.StorageFile.Close(ctx)
}

// A file that could not be closed in time was forgotten and stayed open.
func TestDefectFileThatIsNotClosedIsForgotten(t *testing.T) {
	dev, copies := openSim(t, sim.Options{})
	c := newCache(t, 8)
	c.write("a", "text")
	s := closeAtEnd(t, open(t, file.Options{Device: dev, Copy: copies, CuFile: file.CuFileOptions{Storage: slowStorage{openStorage(t, dev)}}, Path: stream.PathCuFile}))
	h := c.acquire("a")
	if _, err := try(t, s, mem.All(streamtest.DeviceMemory(dev).Alloc(t, 4)), mem.All(h.Region())); err != nil {
		t.Fatal(err)
	}
	h.Release()
	if err := c.h.Close(within(t)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the first close: %v", err)
	}
	if err := c.h.Close(within(t)); err != nil {
		t.Errorf("the second close: %v", err)
	}
}

func TestHandlesClose(t *testing.T) {
	c := newCache(t, 8)
	c.write("a", "text")
	h := c.acquire("a")
	if err := c.h.Close(within(t)); !errors.Is(err, errdefs.ErrBusy) {
		t.Errorf("close while a file is held: %v", err)
	}
	if _, err := c.h.Acquire(within(t), c.dir, "a", os.O_RDWR); !errors.Is(err, errdefs.ErrClosed) {
		t.Errorf("acquire from a closed cache: %v", err)
	}
	c.holds(h, "text")
	h.Release()
	for range 2 {
		if err := c.h.Close(within(t)); err != nil {
			t.Error(err)
		}
	}
}

// A second acquire does not register the file again. If the registration failed, the next acquire
// tries again.
func TestDefectRegistrationForgotten(t *testing.T) {
	plan := fault.New(1)
	dev, copies := openSim(t, sim.Options{Faults: plan})
	c := newCache(t, 8)
	s := open(t, file.Options{Device: dev, Copy: copies, CuFile: file.CuFileOptions{Storage: openStorage(t, dev)}, Direct: file.DirectRequire})
	t.Cleanup(func() {
		if err := errors.Join(s.Close(within(t)), c.h.Close(within(t))); err != nil {
			t.Error(err)
		}
	})
	r, err := dev.Alloc(4096, devOptions)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = dev.Free(r) }()
	load := func(name string) error {
		h := c.acquire(name)
		defer h.Release()
		t, err := s.Submit(within(c), &mem.Batch{Dst: []mem.Extent{mem.All(r).Sub(0, 4)}, Src: []mem.Extent{mem.All(h.Region())}})
		if err != nil {
			return err
		}
		return t.Wait(within(c))
	}
	c.write("a", "text")
	for range 3 {
		if err := load("a"); err != nil {
			t.Fatal(err)
		}
	}
	if got := c.h.Stats().Registrations; got != 1 {
		t.Errorf("%d registrations", got)
	}
	c.write("b", "text")
	plan.Add(fault.Nth(sim.OpFileRegister, 1).Fail(nil))
	for range 2 {
		if err := load("b"); !errors.Is(err, fault.ErrInjected) {
			t.Errorf("a file whose registration failed: %v", err)
		}
	}
	if err := load("a"); err != nil {
		t.Error(err)
	}
}

// BenchmarkHandles compares opening a file each time with keeping it open.
func BenchmarkHandles(b *testing.B) {
	c := newCache(b, 0)
	c.write("block", "bytes")
	b.Run("open", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			f, err := c.dir.Open("block", os.O_RDONLY)
			if err == nil {
				_, err = f.Stat()
			}
			if err == nil {
				err = f.Close()
			}
			if err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("hit", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			h, err := c.h.Acquire(b.Context(), c.dir, "block", os.O_RDONLY)
			if err != nil {
				b.Fatal(err)
			}
			h.Release()
		}
	})
}
