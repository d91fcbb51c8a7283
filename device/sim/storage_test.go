package sim_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/mem"
)

// tempFile returns a file of n bytes, 1, 2, 3, ..., that is open until the test ends.
func tempFile(t *testing.T, n int) *os.File {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(t.TempDir(), "file"), os.O_RDWR|os.O_CREATE, 0o600)
	must(t, err)
	t.Cleanup(func() { f.Close() })
	_, err = f.Write(counted(n))
	must(t, err)
	return f
}

func counted(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i + 1)
	}
	return b
}

func openStorage(t *testing.T, d *sim.Device) device.Storage {
	t.Helper()
	st, err := d.OpenStorage(device.StorageOptions{})
	must(t, err)
	t.Cleanup(func() { must(t, st.Close()) })
	return st
}

func registerFile(t *testing.T, st device.Storage, f *os.File) device.StorageEnqueuer {
	t.Helper()
	sf, err := st.Register(int(f.Fd()))
	must(t, err)
	t.Cleanup(func() { must(t, sf.Close(context.WithoutCancel(t.Context()))) })
	e, ok := sf.(device.StorageEnqueuer)
	if !ok {
		t.Fatalf("%T has no asynchronous transfers", sf)
	}
	return e
}

// reachFiles uses each file operation twice and joins all errors.
func reachFiles(t *testing.T, plan *fault.Plan) error {
	t.Helper()
	f := tempFile(t, 8192)
	d, err := sim.Open(sim.Options{Faults: plan})
	must(t, err)
	var reported []error
	report := func(err error) bool { reported = append(reported, err); return err == nil }
	r, err := d.Alloc(4096, device.AllocOptions{})
	must(t, err)
	q, err := d.OpenQueue(device.QueueOptions{})
	must(t, err)
	ended := func(x device.Transfer, err error) {
		if report(err) {
			_, err := x.Wait(t.Context())
			report(err)
			x.Close()
		}
	}
	st, err := d.OpenStorage(device.StorageOptions{})
	if report(err) {
		for range 2 {
			if report(st.RegisterBuffer(r)) {
				report(st.UnregisterBuffer(r))
			}
			sf, err := st.Register(int(f.Fd()))
			if !report(err) {
				continue
			}
			_, err = sf.Read(mem.All(r), 0)
			report(err)
			_, err = sf.Write(mem.All(r), 0)
			report(err)
			if e, ok := sf.(device.StorageEnqueuer); ok {
				ended(e.EnqueueRead(q, mem.All(r), 0))
				ended(e.EnqueueWrite(q, mem.All(r), 0))
			}
			report(sf.Close(t.Context()))
		}
		report(st.Close())
	}
	report(q.Close(t.Context()))
	report(d.Free(r))
	report(d.Close())
	return errors.Join(reported...)
}

func TestEveryOperationOfFilesFailsAlone(t *testing.T) {
	for _, op := range []string{
		sim.OpStorageOpen, sim.OpFileRegister, sim.OpBufferRegister, sim.OpFileEnqueue, sim.OpFileRead, sim.OpFileWrite,
	} {
		t.Run(op, func(t *testing.T) { testkit.Sweep(t, op, errdefs.ErrNoSpace, reachFiles) })
	}
}

func TestDefectSecondStorageOpenForgetsTheFailure(t *testing.T) {
	d := open(t, sim.Options{Faults: fault.New(1, fault.Nth(sim.OpStorageOpen, 0).Fail(nil))})
	_, first := d.OpenStorage(device.StorageOptions{})
	if _, timer := d.OpenStorage(device.StorageOptions{}); first == nil || timer == nil || first.Error() != timer.Error() {
		t.Errorf("the first open returned %v, the second %v", first, timer)
	}
}

func TestDefectDescriptorUsedAgainIsAnotherFile(t *testing.T) {
	d := open(t, sim.Options{})
	r, err := d.Alloc(4096, device.AllocOptions{})
	must(t, err)
	defer func() { must(t, d.Free(r)) }()
	st := openStorage(t, d.Device)
	f, other := tempFile(t, 4096), tempFile(t, 4096)
	sf := registerFile(t, st, f)
	must(t, unix.Dup2(int(other.Fd()), int(f.Fd()))) // f's descriptor now refers to other's file
	if _, err := sf.Write(mem.All(r), 0); !errors.Is(err, unix.EBADF) {
		t.Errorf("write to a file whose descriptor is another's: %v", err)
	}
	if got, err := os.ReadFile(other.Name()); err != nil || !bytes.Equal(got, counted(4096)) {
		t.Errorf("the file behind the reused descriptor has changed: %v", err)
	}
}

func TestShortTransferIsNoError(t *testing.T) {
	plan := fault.New(1, fault.Every(sim.OpFileRead, 1).Partial(nil))
	d := open(t, sim.Options{Faults: plan})
	r, err := d.Alloc(4096, device.AllocOptions{})
	must(t, err)
	defer func() { must(t, d.Free(r)) }()
	q, err := d.OpenQueue(device.QueueOptions{})
	must(t, err)
	sf := registerFile(t, openStorage(t, d.Device), tempFile(t, 8192))
	if n, err := sf.Read(mem.All(r), 0); n != 2048 || err != nil {
		t.Errorf("a read that is cut in half: %d, %v", n, err)
	}
	x, err := sf.EnqueueRead(q, mem.All(r), 0)
	must(t, err)
	if n, err := x.Wait(t.Context()); n != 2048 || err != nil {
		t.Errorf("a queued read that is cut in half: %d, %v", n, err)
	}
	x.Close()
	must(t, q.Close(t.Context()))
}

func TestMemoryFreedUnderATransferIsFound(t *testing.T) {
	d := open(t, sim.Options{Interleave: &sim.Interleave{Manual: true}})
	r, err := d.Alloc(4096, device.AllocOptions{})
	must(t, err)
	q, err := d.OpenQueue(device.QueueOptions{})
	must(t, err)
	sf := registerFile(t, openStorage(t, d.Device), tempFile(t, 8192))
	x, err := sf.EnqueueRead(q, mem.All(r), 0)
	must(t, err)
	must(t, d.Free(r))
	d.StepAll()
	if _, err := x.Wait(t.Context()); err == nil || !strings.Contains(err.Error(), "use after free") {
		t.Errorf("a transfer to memory that was freed: %v", err)
	}
	x.Close()
	if _, err := sf.EnqueueRead(q, mem.All(r), 0); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("a transfer to memory that is freed: %v", err)
	}
	go func() {
		for d.Step() || !t.Failed() && t.Context().Err() == nil {
			time.Sleep(time.Millisecond)
		}
	}()
	must(t, q.Close(t.Context()))
}

func TestStalledTransferKeepsItsFile(t *testing.T) {
	plan := fault.New(1, fault.Nth(sim.OpFileRead, 0).Stall())
	d := open(t, sim.Options{Faults: plan})
	r, err := d.Alloc(4096, device.AllocOptions{})
	must(t, err)
	defer func() { must(t, d.Free(r)) }()
	sf := registerFile(t, openStorage(t, d.Device), tempFile(t, 8192))
	read := make(chan error, 1)
	go func() {
		_, err := sf.Read(mem.All(r), 0)
		read <- err
	}()
	must(t, plan.Await(t.Context(), 1))
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := sf.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("close a file that is being read: %v", err)
	}
	closed := make(chan error, 1)
	go func() { closed <- sf.Close(t.Context()) }()
	plan.Release()
	must(t, <-read)
	must(t, <-closed)
}

func TestStorageModelIsKept(t *testing.T) {
	t.Run("missing", func(t *testing.T) {
		d := open(t, sim.Options{Storage: sim.StorageModel{Missing: true}})
		if _, err := d.OpenStorage(device.StorageOptions{}); !errors.Is(err, errdefs.ErrNotSupported) {
			t.Error(err)
		}
	})
	t.Run("no async", func(t *testing.T) {
		d := open(t, sim.Options{Storage: sim.StorageModel{NoAsync: true, Compat: "it was asked for"}})
		st := openStorage(t, d.Device)
		sf, err := st.Register(int(tempFile(t, 10).Fd()))
		must(t, err)
		if _, ok := sf.(device.StorageEnqueuer); ok {
			t.Error("the file has asynchronous transfers")
		}
		if m := sf.Mode(); m.Direct || m.Reason != "it was asked for" {
			t.Errorf("mode %+v", m)
		}
		must(t, sf.Close(t.Context()))
	})
	t.Run("limits", func(t *testing.T) {
		d := open(t, sim.Options{Storage: sim.StorageModel{MaxFiles: 1, MaxBufferBytes: 5000}})
		st := openStorage(t, d.Device)
		f := tempFile(t, 10)
		sf := registerFile(t, st, f)
		if _, err := st.Register(int(f.Fd())); !errors.Is(err, errdefs.ErrBusy) {
			t.Errorf("a file too many: %v", err)
		}
		must(t, sf.Close(t.Context()))
		timer := registerFile(t, st, f)
		must(t, timer.Close(t.Context()))
		a, err := d.Alloc(4096, device.AllocOptions{})
		must(t, err)
		b, err := d.Alloc(4096, device.AllocOptions{})
		must(t, err)
		must(t, st.RegisterBuffer(a))
		if err := st.RegisterBuffer(b); !errors.Is(err, errdefs.ErrNoMemory) {
			t.Errorf("a buffer too many: %v", err)
		}
		must(t, st.UnregisterBuffer(a))
		must(t, st.RegisterBuffer(b))
		must(t, st.UnregisterBuffer(b))
		must(t, errors.Join(d.Free(a), d.Free(b)))
	})
	if err := (&sim.Options{Storage: sim.StorageModel{MaxFiles: -1, MaxBufferBytes: -1}}).Validate(); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("limits below zero: %v", err)
	}
}

func TestDeviceCloseReportsWhatIsLeftOfFiles(t *testing.T) {
	d, err := sim.Open(sim.Options{})
	must(t, err)
	st, err := d.OpenStorage(device.StorageOptions{})
	must(t, err)
	_, err = st.Register(int(tempFile(t, 10).Fd()))
	must(t, err)
	if err := d.Close(); !errors.Is(err, errdefs.ErrBusy) || !strings.Contains(err.Error(), "storage of device 0 was still open") {
		t.Errorf("close the device: %v", err)
	}
	must(t, st.Close())
	if _, err := d.OpenStorage(device.StorageOptions{}); !errors.Is(err, errdefs.ErrClosed) {
		t.Errorf("open the storage of a closed device: %v", err)
	}

	d, err = sim.Open(sim.Options{})
	must(t, err)
	st, err = d.OpenStorage(device.StorageOptions{})
	must(t, err)
	r, err := d.Alloc(4096, device.AllocOptions{})
	must(t, err)
	must(t, st.RegisterBuffer(r))
	must(t, d.Free(r))
	if err := st.Close(); !errors.Is(err, errdefs.ErrBusy) {
		t.Errorf("close a storage with a buffer: %v", err)
	}
	if err := d.Close(); err == nil || !strings.Contains(err.Error(), "a registered buffer was freed") {
		t.Errorf("close the device: %v", err)
	}
}

func TestMisalignedTransfersAreCountedOrRefused(t *testing.T) {
	for _, refuse := range []bool{false, true} {
		d := open(t, sim.Options{Storage: sim.StorageModel{Aligned: refuse}})
		r, err := d.Alloc(3*4096, device.AllocOptions{})
		must(t, err)
		q, err := d.OpenQueue(device.QueueOptions{})
		must(t, err)
		sf := registerFile(t, openStorage(t, d.Device), tempFile(t, 3*4096))
		before := d.StorageFigures()
		for k, at := range []struct{ mem, n, off int64 }{{0, 4096, 0}, {4096, 8192, 4096}, {512, 4096, 0}, {0, 100, 0}, {0, 4096, 512}} {
			wrong := refuse && k >= 2
			e := mem.Extent{Region: r, Off: at.mem, Len: at.n}
			if n, err := sf.Read(e, at.off); errors.Is(err, unix.EINVAL) != wrong || !wrong && n != at.n {
				t.Errorf("refuse %t: transfer %d: %d, %v", refuse, k, n, err)
			}
			x, err := sf.EnqueueRead(q, e, at.off)
			must(t, err)
			if n, err := x.Wait(t.Context()); errors.Is(err, unix.EINVAL) != wrong || !wrong && n != at.n {
				t.Errorf("refuse %t: transfer %d on a queue: %d, %v", refuse, k, n, err)
			}
			x.Close()
		}
		must(t, q.Close(t.Context()))
		must(t, d.Free(r))
		want := sim.StorageFigures{Files: 1, Registrations: 1, Transfers: 10, Misaligned: 6, Bytes: 2 * (3*4096 + 4096 + 100 + 4096)}
		if refuse {
			want = sim.StorageFigures{Files: 1, Registrations: 1, Transfers: 4, Bytes: 2 * 3 * 4096}
		}
		if got := d.StorageFigures(); got != want || before != (sim.StorageFigures{Files: 1, Registrations: 1}) {
			t.Errorf("refuse %t: figures %+v, want %+v; before: %+v", refuse, got, want, before)
		}
	}
}
