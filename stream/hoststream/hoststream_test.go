package hoststream_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/sys/hostmem"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream/hoststream"
)

// Package internal/acceptance tests the order of loads and dumps of an engine with host streams,
// also on GPUs.

func TestMain(m *testing.M) { testkit.Main(m) }

const shards = 3

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// rig is a simulated device with an adopted stream of a host program. The stream waits until open
// is called.
type rig struct {
	dev   *sim.Device
	queue *sim.Queue
	word  *mem.Region
	set   *hoststream.Set
	st    *hoststream.Stream
}

func newRig(t *testing.T) *rig {
	t.Helper()
	dev, err := sim.Open(sim.Options{})
	must(t, err)
	q, err := dev.OpenQueue(device.QueueOptions{})
	must(t, err)
	r := &rig{dev: dev, queue: q.(*sim.Queue)} //nolint:errcheck,forcetypeassert // always true
	r.word, err = dev.AllocHost(64)
	must(t, err)
	raw, err := dev.AdoptStream(r.queue.Handle())
	must(t, err)
	must(t, raw.WaitValue(mem.Extent{Region: r.word, Len: 8}, 1))
	r.set, err = hoststream.Open(dev, 1, shards)
	must(t, err)
	r.st, err = r.set.Adopt(r.queue.Handle())
	must(t, err)
	t.Cleanup(func() {
		r.open()
		ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience())
		defer cancel()
		must(t, errors.Join(r.set.Close(ctx), r.queue.Close(ctx), dev.Free(r.word), dev.Close()))
	})
	return r
}

// open lets the stream of the program continue.
func (r *rig) open() { hostmem.StoreUint64(r.word.Bytes(), 1) }

// recorded returns a dependency on all work of the program.
func (r *rig) recorded(t *testing.T) mem.Dependency {
	t.Helper()
	d, err := r.st.Recorded()
	must(t, err)
	return d
}

func isDone(d mem.Dependency, within time.Duration) bool {
	select {
	case <-d.Done():
		return true
	case <-time.After(within):
		return false
	}
}

const glance = 20 * time.Millisecond

func TestRecordedResolvesWithTheWork(t *testing.T) {
	r := newRig(t)
	d := r.recorded(t)
	if isDone(d, glance) {
		t.Fatal("the work has not ended")
	}
	r.open()
	if !isDone(d, testkit.Patience()) || d.Err() != nil {
		t.Errorf("work that has ended: %v", d.Err())
	}
}

func TestCloseResolvesRecordedWork(t *testing.T) {
	r := newRig(t)
	waited, other := r.recorded(t), r.recorded(t)
	waited.Done() // starts a goroutine
	must(t, r.set.Close(t.Context()))
	for _, d := range []mem.Dependency{waited, other} {
		if !isDone(d, testkit.Patience()) || !errors.Is(d.Err(), errdefs.ErrClosed) {
			t.Errorf("recorded work of a closed set: %v", d.Err())
		}
	}
	_, errAdopt := r.set.Adopt(r.queue.Handle())
	_, errRecord := r.st.Recorded()
	_, _, errLoad := r.set.NewLoad(t.Context(), true)
	for name, err := range map[string]error{"adopt": errAdopt, "record": errRecord, "load": errLoad} {
		if !errors.Is(err, errdefs.ErrClosed) {
			t.Errorf("%s after Close: %v", name, err)
		}
	}
}

// task is a task that streams can wait for.
type task struct{ hoststream.Load }

func TestStreamWaitsForShards(t *testing.T) {
	r := newRig(t)
	r.open()
	var load task
	l, progress, err := r.set.NewLoad(t.Context(), true)
	must(t, err)
	load.Load = l
	var after [shards]mem.Dependency
	for i := range after {
		must(t, r.st.WaitShard(&load, i))
		after[i] = r.recorded(t)
	}
	for i := range after {
		if isDone(after[i], glance) {
			t.Fatalf("the stream has not waited for shard %d", i)
		}
		progress.Advance(i + 1)
		if !isDone(after[i], testkit.Patience()) {
			t.Fatalf("the stream still waits for shard %d", i)
		}
	}
	progress.Set(nil)
	must(t, r.st.WaitLoad(&load))
	if !isDone(r.recorded(t), testkit.Patience()) {
		t.Error("the stream waits for a load that has ended")
	}
}

func TestWaitsAreChecked(t *testing.T) {
	r := newRig(t)
	var none *hoststream.Set
	_, errAdopt := none.Adopt(r.queue.Handle())
	_, _, errLoad := none.NewLoad(t.Context(), false)
	for name, err := range map[string]error{
		"adopt without a set": errAdopt, "load without a set": errLoad,
		"load that no stream waits for": r.st.WaitLoad(&task{}), "shard of it": r.st.WaitShard(&task{}, 0),
		"shard that does not exist": r.st.WaitShard(&task{}, shards), "negative shard": r.st.WaitShard(&task{}, -1),
	} {
		if !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := hoststream.Open(struct{ device.Device }{r.dev}, 1, shards); !errors.Is(err, errdefs.ErrNotSupported) {
		t.Errorf("open on a device that cannot adopt streams: %v", err)
	}
}
