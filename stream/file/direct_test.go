package file_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/dirfs"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream/file"
)

// direct is direct storage of a simulated device, with files of 16 KiB in a directory.
type direct struct {
	testing.TB
	dev  *sim.Device
	plan *fault.Plan
	dir  dirfs.Dir
	path string
	d    *file.DirectFiles
	gpu  *mem.Region

	storage device.Storage
}

const directBytes = 16 << 10

func newDirect(tb testing.TB, model sim.StorageModel, o file.DirectOptions) *direct {
	tb.Helper()
	x := &direct{TB: tb, plan: fault.New(1), path: tb.TempDir()}
	must := func(err error) {
		tb.Helper()
		if err != nil {
			tb.Fatal(err)
		}
	}
	var err error
	x.dev, err = sim.Open(sim.Options{Faults: x.plan, Storage: model})
	must(err)
	tb.Cleanup(func() { must(x.dev.Close()) })
	o.Device = x.dev
	o.Storage, err = x.dev.OpenStorage(device.StorageOptions{})
	must(err)
	x.storage = o.Storage
	tb.Cleanup(func() { must(o.Storage.Close()) })
	x.gpu, err = x.dev.Alloc(directBytes, device.AllocOptions{})
	must(err)
	tb.Cleanup(func() { must(x.dev.Free(x.gpu)) })
	x.dir = openDir(tb, dirfs.OS(), x.path)
	x.d, err = file.OpenDirect(o)
	must(err)
	tb.Cleanup(func() { must(x.d.Close(within(tb))) })
	return x
}

func (x *direct) write(name string, seed byte) []byte {
	x.Helper()
	b := make([]byte, directBytes)
	for i := range b {
		b[i] = byte(i/512) ^ seed
	}
	if err := os.WriteFile(filepath.Join(x.path, name), b, 0o600); err != nil {
		x.Fatal(err)
	}
	return b
}

func (x *direct) open(name string) dirfs.DirectFile {
	x.Helper()
	f, err := x.d.Open(within(x), x.dir, name)
	if err != nil {
		x.Fatal(err)
	}
	return f
}

// read reads a whole file, and returns the content of the device memory after that.
func (x *direct) read(f dirfs.DirectFile) ([]byte, error) {
	x.Helper()
	if quiesced, err := f.ReadDirect(within(x), mem.All(x.gpu), 0); err != nil {
		if quiesced != nil {
			x.Error("a failed read of a working queue has left a transfer in progress")
		}
		return nil, err
	}
	p, err := x.dev.AllocHost(directBytes)
	if err != nil {
		x.Fatal(err)
	}
	q, err := x.dev.OpenQueue(device.QueueOptions{})
	if err != nil {
		x.Fatal(err)
	}
	err = errors.Join(q.Copy(mem.All(p), mem.All(x.gpu)), q.Close(within(x)))
	out := bytes.Clone(p.Bytes())
	if err := errors.Join(err, x.dev.Free(p)); err != nil {
		x.Fatal(err)
	}
	return out, nil
}

// use opens a file, reads it, and releases it.
func (x *direct) use(name string, want []byte) {
	x.Helper()
	f := x.open(name)
	defer f.Release()
	if got, err := x.read(f); err != nil || !bytes.Equal(got, want) {
		x.Errorf("file %s: %v, or wrong bytes", name, err)
	}
}

func (x *direct) stats(want file.HandleStats) {
	x.Helper()
	if got := x.d.Stats().Handles; got != want {
		x.Errorf("handles %+v, want %+v", got, want)
	}
}

// descriptors returns the number of descriptors of this process that refer to the file at path.
func descriptors(tb testing.TB, path string) (n int) {
	tb.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		tb.Fatal(err)
	}
	for _, e := range entries {
		if to, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && strings.HasPrefix(to, path) {
			n++
		}
	}
	return n
}

func TestDirectReadsByCallsAndQueues(t *testing.T) {
	for _, queues := range []int{0, 2} {
		for _, compat := range []string{"", "forced"} {
			x := newDirect(t, sim.StorageModel{Aligned: true, Compat: compat}, file.DirectOptions{Queues: queues})
			var wg sync.WaitGroup
			one, two := x.write("one", 1), x.write("two", 2)
			x.use("one", one)
			x.use("two", two)
			x.use("one", one)
			x.stats(file.HandleStats{Open: 2, Hits: 1, Opens: 2, Registrations: 2})
			for range 8 { // the reads share memory, so only the counters are checked
				wg.Go(func() {
					f := x.open("two")
					defer f.Release()
					if _, err := f.ReadDirect(within(t), mem.All(x.gpu).Sub(4096, 8192), 4096); err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
			if st := x.d.Stats(); st.Reads != 11 || st.Bytes != 3*directBytes+8*8192 || st.Failed != 0 || st.Handles.Registrations != 2 {
				t.Errorf("%d queues, %q: %+v", queues, compat, st)
			}
			f := x.open("one")
			if m, err := x.d.Mode(f); err != nil || m.Direct == (compat != "") {
				t.Errorf("mode %+v, %v", m, err)
			}
			f.Release()
			f.Release()
		}
	}
}

func TestDirectRefuses(t *testing.T) {
	x := newDirect(t, sim.StorageModel{}, file.DirectOptions{})
	x.write("f", 0)
	f := x.open("f")
	defer f.Release()
	for _, c := range []struct{ at, n, off int64 }{{512, 4096, 0}, {0, 4095, 0}, {0, 4096, 512}} {
		if _, err := f.ReadDirect(within(t), mem.All(x.gpu).Sub(c.at, c.n), c.off); !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("%+v: %v", c, err)
		}
	}
	if _, err := f.ReadDirect(within(t), mem.All(x.gpu), 4096); err == nil {
		t.Error("a read beyond the end of the file succeeded")
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := f.ReadDirect(ended, mem.All(x.gpu), 0); !errors.Is(err, context.Canceled) {
		t.Errorf("after its context has ended: %v", err)
	}
	if st := x.dev.StorageFigures(); st.Misaligned != 0 {
		t.Errorf("%d transfers were not aligned", st.Misaligned)
	}
	if _, err := x.d.Open(within(t), x.dir, "none"); !errors.Is(err, unix.ENOENT) {
		t.Errorf("a missing file: %v", err)
	}
	for _, o := range []file.DirectOptions{{}, {Queues: -1}, {Handles: -1}} {
		if _, err := file.OpenDirect(o); !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("%+v: %v", o, err)
		}
	}
}

func TestOnlyGDSRefusesTheCompatibilityMode(t *testing.T) {
	x := newDirect(t, sim.StorageModel{Compat: "no module here"}, file.DirectOptions{OnlyGDS: true})
	x.write("f", 0)
	f := x.open("f")
	defer f.Release()
	if _, err := f.ReadDirect(within(t), mem.All(x.gpu), 0); !errors.Is(err, errdefs.ErrNotSupported) || !strings.Contains(err.Error(), "no module here") {
		t.Error(err)
	}
	if st := x.dev.StorageFigures(); st.Transfers != 0 {
		t.Errorf("%d transfers", st.Transfers)
	}
}

// After a failed registration, the next user of the file tries again.
func TestFailedRegistrationIsTriedAgain(t *testing.T) {
	x := newDirect(t, sim.StorageModel{}, file.DirectOptions{})
	want := x.write("f", 3)
	x.plan.Add(fault.Nth(sim.OpFileRegister, 0).Fail(nil))
	f := x.open("f")
	if _, err := x.read(f); err == nil {
		t.Error("a read without a registration")
	}
	f.Release()
	x.stats(file.HandleStats{Opens: 1, Registrations: 1})
	x.use("f", want)
	x.stats(file.HandleStats{Open: 1, Opens: 2, Registrations: 2})
	if n := x.d.Stats().Failed; n != 1 {
		t.Errorf("%d failures, want 1", n)
	}
}

func TestDirectHandlesAreBounded(t *testing.T) {
	x := newDirect(t, sim.StorageModel{MaxFiles: 4}, file.DirectOptions{Handles: 3})
	for round := range byte(3) {
		for i := range byte(8) {
			name := fmt.Sprint("file", i)
			x.use(name, x.write(name, round<<4|i)) // the same inode with other bytes
		}
	}
	if st := x.d.Stats().Handles; st.Open > 3 || st.Held != 0 || st.Evictions != 21 {
		t.Errorf("%+v", st)
	}
	if st := x.dev.StorageFigures(); st.Files > 3 {
		t.Errorf("%d files are registered", st.Files)
	}
}

// The space of a removed file is freed at once if no read uses it, and otherwise after the last
// read.
func TestDefectRemovedFileKeepsItsSpace(t *testing.T) {
	x := newDirect(t, sim.StorageModel{}, file.DirectOptions{})
	want := x.write("f", 5)
	x.use("f", want)
	path := filepath.Join(x.path, "f")
	if descriptors(t, path) == 0 {
		t.Fatal("the file is not kept open, so this test has no effect")
	}
	x.d.Forget(x.dir, "f")
	if n := descriptors(t, path); n != 0 {
		t.Errorf("%d descriptors of a forgotten file", n)
	}
	f := x.open("f")
	if _, err := x.read(f); err != nil { // cuFile can only register files that have a name
		t.Fatal(err)
	}
	x.d.Forget(x.dir, "f")
	if err := x.dir.Remove("f"); err != nil {
		t.Fatal(err)
	}
	if got, err := x.read(f); err != nil || !bytes.Equal(got, want) {
		t.Errorf("a reader has lost the file: %v", err)
	}
	if descriptors(t, path) == 0 {
		t.Error("the file of a reader was closed")
	}
	f.Release()
	if n := descriptors(t, path); n != 0 {
		t.Errorf("%d descriptors of a removed file after its last reader", n)
	}
	x.d.Forget(x.dir, "f")
	x.d.Forget(x.dir, "never there")
	x.stats(file.HandleStats{Opens: 2, Registrations: 2})
	x.use("f", x.write("f", 6)) // another file with the same name
}

// If a queue breaks during a read, it may still write to the memory. The caller gets a channel that
// is closed when it no longer can.
func TestDefectMemoryOfABrokenQueueIsReused(t *testing.T) {
	x := newDirect(t, sim.StorageModel{}, file.DirectOptions{})
	want := x.write("f", 7)
	x.use("f", want)
	b := &breaking{Device: x.dev, broken: make(chan struct{}), idle: make(chan struct{})}
	st := x.storage
	d, err := file.OpenDirect(file.DirectOptions{Storage: st, Device: b, Queues: 1})
	if err != nil {
		t.Fatal(err)
	}
	f, err := d.Open(within(t), x.dir, "f")
	if err != nil {
		t.Fatal(err)
	}
	x.plan.Add(fault.Nth(sim.OpFileRead, int(x.plan.Seen(sim.OpFileRead))).Stall())
	type result struct {
		quiesced <-chan struct{}
		err      error
	}
	done := make(chan result, 1)
	go func() {
		quiesced, err := f.ReadDirect(within(t), mem.All(x.gpu), 0)
		done <- result{quiesced, err}
	}()
	if err := x.plan.Await(within(t), 1); err != nil {
		t.Fatal(err)
	}
	close(b.broken)
	r := <-done
	if !errors.Is(r.err, errdefs.ErrBroken) || r.quiesced == nil {
		t.Fatalf("the read: %v, quiesced %v", r.err, r.quiesced)
	}
	if _, err := f.ReadDirect(within(t), mem.All(x.gpu), 0); !errors.Is(err, errdefs.ErrBroken) {
		t.Errorf("a read by the broken queue: %v", err)
	}
	f.Release()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := d.Close(ctx); !errors.Is(err, errdefs.ErrBusy) {
		t.Errorf("close while the queue is at work: %v", err)
	}
	select {
	case <-r.quiesced:
		t.Error("the memory was given back while the queue may write it")
	default:
	}
	if n := d.Stats().Quarantined; n != 1 {
		t.Errorf("%d transfers in quarantine, want 1", n)
	}
	x.plan.Release()
	close(b.idle)
	if err := d.Close(within(t)); err != nil {
		t.Error(err)
	}
	select {
	case <-r.quiesced:
	default:
		t.Error("the memory was not given back after the queue was closed")
	}
	if n := d.Stats().Quarantined; n != 0 {
		t.Errorf("%d transfers in quarantine after close", n)
	}
}

func TestDirectWrites(t *testing.T) {
	for _, queues := range []int{0, 2} {
		x := newDirect(t, sim.StorageModel{Aligned: true}, file.DirectOptions{Queues: queues})
		want := x.write("from", 9)
		x.use("from", want) // fills the device memory with its bytes
		for _, fault := range []func() error{nil, func() error { return errdefs.ErrNoSpace }} {
			n, err := x.d.OpenWriter(x.dir, "new", os.O_CREATE|os.O_EXCL)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := x.d.OpenWriter(x.dir, "new", os.O_CREATE|os.O_EXCL); !errors.Is(err, unix.EEXIST) {
				t.Errorf("a second file of the name: %v", err)
			}
			if fault != nil {
				x.plan.Add(faultNth(x, sim.OpFileWrite))
			}
			if _, err = n.WriteDirect(within(t), mem.All(x.gpu), 0); (err != nil) != (fault != nil) {
				t.Errorf("%d queues: %v", queues, err)
			}
			if _, err := n.WriteDirect(within(t), mem.All(x.gpu).Sub(0, 512), directBytes); !errors.Is(err, errdefs.ErrInvalid) {
				t.Errorf("a write that is not aligned: %v", err)
			}
			if err := n.Close(); err != nil {
				t.Error(err)
			}
			if fault == nil {
				x.use("new", want)
				x.d.Forget(x.dir, "new")
			}
			if err := x.dir.Remove("new"); err != nil {
				t.Error(err)
			}
			if n := descriptors(t, filepath.Join(x.path, "new")); n != 0 {
				t.Errorf("%d descriptors are left", n)
			}
		}
		if st := x.d.Stats(); st.Writes != 1 || st.Failed != 1 {
			t.Errorf("%+v", st)
		}
	}
}

// faultNth makes the next write short. The library does not report that as an error.
func faultNth(x *direct, op string) fault.Rule {
	return fault.Nth(op, int(x.plan.Seen(op))).Partial(nil)
}
