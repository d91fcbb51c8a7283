package storage_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/device/storage"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/mem"
)

func TestMain(m *testing.M) { testkit.Main(m) }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// rig is a simulated device with a storage and one file.
type rig struct {
	dev *sim.Device
	st  device.Storage
	f   device.StorageEnqueuer
	mem *mem.Region
}

func newRig(t *testing.T, o sim.Options) *rig {
	t.Helper()
	d, err := sim.Open(o)
	must(t, err)
	t.Cleanup(func() { must(t, d.Close()) })
	st, err := d.OpenStorage(device.StorageOptions{Transfers: 1})
	must(t, err)
	t.Cleanup(func() { must(t, st.Close()) })
	file, err := os.OpenFile(filepath.Join(t.TempDir(), "file"), os.O_RDWR|os.O_CREATE, 0o600)
	must(t, err)
	t.Cleanup(func() { must(t, file.Close()) })
	must(t, file.Truncate(1<<20))
	sf, err := st.Register(int(file.Fd()))
	must(t, err)
	t.Cleanup(func() { must(t, sf.Close(context.WithoutCancel(t.Context()))) })
	e, ok := sf.(device.StorageEnqueuer)
	if !ok {
		t.Fatalf("%T has no asynchronous transfers", sf)
	}
	r, err := d.Alloc(1<<20, device.AllocOptions{})
	must(t, err)
	t.Cleanup(func() { must(t, d.Free(r)) })
	return &rig{d, st, e, r}
}

func (r *rig) queue(t *testing.T) device.Queue {
	t.Helper()
	q, err := r.dev.OpenQueue(device.QueueOptions{})
	must(t, err)
	t.Cleanup(func() { must(t, q.Close(context.WithoutCancel(t.Context()))) })
	return q
}

// Several goroutines use one file: queues whose transfers are closed early and late, direct
// callers, and one that closes the file. Every accepted transfer must copy its bytes.
func TestManyUsersOfOneFile(t *testing.T) {
	r := newRig(t, sim.Options{})
	var wg sync.WaitGroup
	for i := range int64(4) {
		q := r.queue(t)
		part := func(k int64) mem.Extent { return mem.Extent{Region: r.mem, Off: i<<16 + k%16*4096, Len: 4096} }
		wg.Go(func() {
			for k := range int64(200) {
				x, err := r.f.EnqueueRead(q, part(k), k*512)
				if errors.Is(err, errdefs.ErrClosed) {
					return
				}
				if err != nil {
					t.Error(err)
					return
				}
				if k%3 == 0 {
					x.Close()
					continue
				}
				if n, err := x.Wait(context.Background()); n != 4096 || err != nil {
					t.Errorf("transfer %d: %d, %v", k, n, err)
				}
				x.Close()
			}
		})
		wg.Go(func() {
			for k := range int64(200) {
				n, err := r.f.Write(mem.Extent{Region: r.mem, Off: (i+8)<<16 + k, Len: 100}, k)
				if errors.Is(err, errdefs.ErrClosed) {
					return
				}
				if n != 100 || err != nil {
					t.Errorf("write %d: %d, %v", k, n, err)
				}
			}
		})
	}
	time.Sleep(2 * time.Millisecond)
	for range 2 {
		wg.Go(func() {
			if err := r.f.Close(context.Background()); err != nil {
				t.Errorf("close: %v", err)
			}
		})
	}
	wg.Wait()
}

// A transfer that is closed while it runs returns its words later. The number of allocated words is
// limited by the number of running transfers.
func TestWordsOfClosedTransfersComeBack(t *testing.T) {
	plan := fault.New(1)
	r := newRig(t, sim.Options{Faults: plan})
	q := r.queue(t)
	before := plan.Seen(sim.OpAllocHost)
	for range 50 {
		for range storage.DefaultTransfers {
			x, err := r.f.EnqueueRead(q, mem.Extent{Region: r.mem, Len: 8}, 0)
			must(t, err)
			x.Close()
			x.Close() // a second call has no effect
		}
		e, err := q.Record()
		must(t, err)
		must(t, e.Wait(t.Context()))
		e.Close()
	}
	if n := plan.Seen(sim.OpAllocHost) - before; n > 1 {
		t.Errorf("%d allocations for %d transfers at a time", n, storage.DefaultTransfers)
	}
}

// If a transfer could not be enqueued, the queue may still use its words. They are reused only
// after the queue has completed its work.
func TestRefusedTransferIsForgotten(t *testing.T) {
	plan := fault.New(1, fault.Nth(sim.OpFileEnqueue, 0).Fail(nil))
	r := newRig(t, sim.Options{Faults: plan})
	q := r.queue(t)
	if _, err := r.f.EnqueueRead(q, mem.All(r.mem), 0); len(plan.Unreported(err)) > 0 {
		t.Errorf("enqueue: %v", err)
	}
	x, err := r.f.EnqueueRead(q, mem.All(r.mem), 0)
	must(t, err)
	if n, err := x.Wait(t.Context()); n != r.mem.Len() || err != nil {
		t.Errorf("the next transfer: %d, %v", n, err)
	}
	x.Close()
	must(t, r.f.Close(t.Context()))
	must(t, r.st.Close())
}

func TestQueueOfAnotherDeviceIsRefused(t *testing.T) {
	r := newRig(t, sim.Options{})
	other := newRig(t, sim.Options{Index: 1})
	if _, err := r.f.EnqueueRead(other.queue(t), mem.All(r.mem), 0); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("a queue of another device: %v", err)
	}
	if _, err := r.f.Read(mem.All(other.mem), 0); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("memory of another device: %v", err)
	}
}

// fill sets byte i of the file to the lowest byte of i/512, and returns the n bytes from off.
func (r *rig) fill(t *testing.T, off, n int64) []byte {
	t.Helper()
	p, err := r.dev.AllocHost(1 << 20)
	must(t, err)
	for i := range p.Bytes() {
		p.Bytes()[i] = byte(i / 512)
	}
	r.copy(t, mem.All(r.mem), mem.All(p))
	if n, err := r.f.Write(mem.All(r.mem), 0); n != 1<<20 || err != nil {
		t.Fatalf("write: %d, %v", n, err)
	}
	want := bytes.Clone(p.Bytes()[off : off+n])
	must(t, r.dev.Free(p))
	return want
}

func (r *rig) copy(t *testing.T, dst, src mem.Extent) {
	t.Helper()
	q, err := r.dev.OpenQueue(device.QueueOptions{})
	must(t, err)
	must(t, q.Copy(dst, src))
	must(t, q.Close(t.Context()))
}

// A transfer stalls before it has read its words, and is closed. Other transfers that run meanwhile
// must not reuse the words.
func TestDefectWordsUsedAgainBeforeTheTransferIsDone(t *testing.T) {
	plan := fault.New(1, fault.Nth(sim.OpFileRead, 0).Stall())
	r := newRig(t, sim.Options{Faults: plan})
	want := r.fill(t, 4096, 8192)
	q, other := r.queue(t), r.queue(t)
	x, err := r.f.EnqueueRead(q, mem.Extent{Region: r.mem, Len: 8192}, 4096)
	must(t, err)
	must(t, plan.Await(t.Context(), 1))
	x.Close()
	for i := range int64(2 * storage.DefaultTransfers) {
		x, err := r.f.EnqueueRead(other, mem.Extent{Region: r.mem, Off: 16 << 10, Len: 100}, i)
		must(t, err)
		if n, err := x.Wait(t.Context()); n != 100 || err != nil {
			t.Fatalf("transfer %d: %d, %v", i, n, err)
		}
		x.Close()
	}
	plan.Release()
	must(t, r.f.Close(t.Context()))
	p, err := r.dev.AllocHost(8192)
	must(t, err)
	r.copy(t, mem.All(p), mem.Extent{Region: r.mem, Len: 8192})
	if !bytes.Equal(p.Bytes(), want) {
		t.Error("the transfer did not move the requested bytes")
	}
	must(t, r.dev.Free(p))
}

func TestDefectFileLetGoOfUnderATransfer(t *testing.T) {
	plan := fault.New(1, fault.Nth(sim.OpFileRead, 0).Stall())
	r := newRig(t, sim.Options{Faults: plan})
	x, err := r.f.EnqueueRead(r.queue(t), mem.All(r.mem), 0)
	must(t, err)
	must(t, plan.Await(t.Context(), 1))
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
	defer cancel()
	if err := r.f.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("close under a transfer: %v", err)
	}
	plan.Release()
	if n, err := x.Wait(t.Context()); n != r.mem.Len() || err != nil {
		t.Errorf("the transfer: %d, %v", n, err)
	}
	x.Close()
}

// A wait that ends early does not affect the transfer.
func TestWaitGivesUp(t *testing.T) {
	plan := fault.New(1, fault.Nth(sim.OpFileRead, 0).Stall())
	r := newRig(t, sim.Options{Faults: plan})
	x, err := r.f.EnqueueRead(r.queue(t), mem.All(r.mem), 0)
	must(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
	defer cancel()
	if _, err := x.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("wait: %v", err)
	}
	if err := r.st.Close(); !errors.Is(err, errdefs.ErrBusy) {
		t.Errorf("close the storage: %v", err)
	}
	plan.Release()
	if n, err := x.Wait(t.Context()); n != r.mem.Len() || err != nil {
		t.Errorf("wait again: %d, %v", n, err)
	}
	x.Close()
}
