package store_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jonboulle/clockwork"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/sys/hostmem"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/store"
	"github.com/kvlane/kvlane/stream"
	"github.com/kvlane/kvlane/tier"
)

// recordedWork is recorded work of an engine that runs until end is called. It implements
// stream.Recorded.
type recordedWork struct {
	r     *rig
	word  *mem.Region
	queue device.Queue
	event device.Event
	asked atomic.Int32 // number of streams that were made to wait
}

// recordWork queues work on the device that writes block n to a page after end is called.
func (r *rig) recordWork(page uint32, n int) *recordedWork {
	r.tb.Helper()
	w := &recordedWork{r: r}
	var err error
	w.word, err = r.dev.AllocHost(64)
	r.must(err)
	stage, err := r.dev.AllocHost(r.blockBytes())
	r.must(err)
	copy(stage.Bytes(), r.content(n))
	q, err := r.dev.OpenQueue(device.QueueOptions{})
	r.must(err)
	handle, ok := q.(interface{ Handle() uintptr })
	if !ok {
		r.tb.Fatalf("%T does not provide a handle", q)
	}
	st, err := r.dev.AdoptStream(handle.Handle())
	r.must(err)
	w.queue = q
	r.must(st.WaitValue(mem.Extent{Region: w.word, Len: 8}, 1))
	off := int64(0)
	for _, planes := range r.pages.Shards {
		for i := range planes {
			r.must(q.Copy(planes[i].Page(page), mem.Extent{Region: stage, Off: off, Len: r.o.planeBytes}))
			off += r.o.planeBytes
		}
	}
	w.event, err = st.Record()
	r.must(err)
	r.tb.Cleanup(func() {
		w.end()
		r.must(q.Close(r.ctx()))
		w.event.Close()
		r.must(errors.Join(r.dev.Free(w.word), r.dev.Free(stage)))
	})
	return w
}

// end lets the recorded work finish.
func (w *recordedWork) end() { hostmem.StoreUint64(w.word.Bytes(), 1) }

func (w *recordedWork) Precede(ctx context.Context, s stream.EventStream) error {
	w.asked.Add(1)
	return s.WaitEvent(ctx, w.event)
}

func (w *recordedWork) Done() <-chan struct{} {
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.r.must(w.event.Wait(context.Background()))
	}()
	return done
}

func (w *recordedWork) Err() error { return nil }

// dumpAfter starts a dump of blocks from pages 0, 1, ... that depends on w.
func (r *rig) dumpAfter(w mem.Dependency, layerwise bool, ns ...int) *store.DumpTask {
	r.tb.Helper()
	o := store.DumpOptions{Layerwise: layerwise}
	if !layerwise {
		o.After = []mem.Dependency{w}
	}
	d, err := r.st.Dump(r.ctx(), r.pages, r.refs(0, ns...), o)
	r.must(err)
	for k := 0; layerwise && k < r.o.shards; k++ {
		r.must(d.SubmitShard(r.ctx(), k, w))
	}
	return d
}

func (r *rig) filling(n int) func() bool {
	return func() bool { return r.hits(n)[0].State == tier.Filling }
}

// counted is a stream that counts its batches.
type counted struct {
	stream.EventStream
	submitted *atomic.Int32
}

func (c counted) Submit(ctx context.Context, b *mem.Batch) (*stream.Ticket, error) {
	t, err := c.EventStream.Submit(ctx, b)
	if err == nil && b.Paged != nil { // a batch without pages only probes whether the stream works
		c.submitted.Add(1)
	}
	return t, err
}

// The device may never finish the work that a dump waits for. The blocks of the dump fail after
// LeaseMax or Cancel. Its slots are released only when the device can no longer write to them.
func TestDumpBehindRecordedWorkGivesUp(t *testing.T) {
	t.Parallel()
	for _, layerwise := range []bool{false, true} {
		for _, cancel := range []bool{false, true} {
			clock := clockwork.NewFakeClock()
			var batches atomic.Int32
			r := newRig(t, rigOptions{
				slots: 8, clock: clock, tune: func(c *store.Config) { c.LeaseMax = time.Minute },
				wrapDump: func(st stream.Stream) stream.Stream {
					es, ok := st.(stream.EventStream)
					if !ok {
						t.Errorf("%T does not support events", st)
					}
					return counted{es, &batches}
				},
			})
			w := r.recordWork(0, 1)
			d := r.dumpAfter(w, layerwise, 1, 2, 3)
			r.eventually(func() bool { return batches.Load() > 0 })
			want := errdefs.ErrExpired
			if cancel {
				want = errdefs.ErrCanceled
				d.Cancel()
			} else {
				clock.Advance(time.Minute - time.Millisecond)
				time.Sleep(10 * time.Millisecond)
				if !r.filling(1)() {
					t.Fatal("the dump gave up before its time")
				}
			}
			r.eventually(func() bool {
				if !cancel {
					clock.Advance(time.Minute)
				}
				return r.st.Stats().Quarantined > 0
			})
			if r.filling(1)() {
				t.Error("another task would wait for the block")
			}
			ended, stop := context.WithCancel(t.Context())
			stop()
			if err := d.SourceFree(ended); err == nil || !unresolved(d.Done()) {
				t.Error("the page is reported as free while the device may still read it")
			}
			w.end()
			r.resolved(d.Done())
			for _, err := range d.Errs() {
				wantErr(t, err, want)
			}
			r.dump(4, 5, 6, 7, 8, 9, 10, 11) // all slots are free again
		}
	}
}

// Dumps that wait for recorded work leave slots to other tasks, however many blocks they have.
func TestDumpBehindRecordedWorkHoldsFewSlots(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigOptions{slots: 8, dirs: []string{t.TempDir()}})
	r.dump(20)
	w := r.recordWork(0, 1)
	r.fill(1, 2)
	for i := 2; i < 6; i++ {
		r.fill(uint32(i), i+1)
	}
	all := []int{1, 2, 3, 4, 5, 6}
	dumps := []*store.DumpTask{r.dumpAfter(w, false, all...)}
	for n := 10; n < 14; n++ {
		dumps = append(dumps, r.dumpAfter(w, n%2 == 0, n))
	}
	leased := func() (n int) {
		for _, h := range r.hits(append(slices.Clone(all), 10, 11, 12, 13)...) {
			if h.State == tier.Filling {
				n++
			}
		}
		return n
	}
	r.eventually(func() bool { return leased() > 0 })
	time.Sleep(20 * time.Millisecond)
	if leased := leased(); leased > 2 {
		t.Errorf("%d of 8 slots are held behind work that does not end, want 1 or 2", leased)
	}
	l, err := r.st.Load(r.ctx(), nil, r.pages, []store.Ref{{Key: r.key(20), Page: 15}}, store.LoadOptions{})
	r.must(err)
	r.must(l.Wait(r.ctx()))
	w.end()
	for _, d := range dumps {
		r.must(d.Durable(r.ctx()))
	}
	r.mustLoad(all...)
}

// If a stream does not support events, the host waits for the work, and the dump holds no slot
// meanwhile.
func TestDumpAfterRecordedWorkByAStreamWithoutEvents(t *testing.T) {
	t.Parallel()
	plain := func(st stream.Stream) stream.Stream { return struct{ stream.Stream }{st} }
	r := newRig(t, rigOptions{wrapDump: plain})
	w := r.recordWork(0, 1)
	d := r.dumpAfter(w, false, 1)
	if !unresolved(d.Done()) || r.filling(1)() || w.asked.Load() != 0 {
		t.Error("the dump did not wait on the host")
	}
	w.end()
	r.must(d.Durable(r.ctx()))
	r.mustLoad(1)
}

// frail is a stream that breaks at its first batch.
type frail struct {
	stream.EventStream
	broken *atomic.Bool
}

func (f frail) Submit(ctx context.Context, b *mem.Batch) (*stream.Ticket, error) {
	if len(b.Dst)+len(b.Src) == 0 && b.Paged != nil && f.broken.CompareAndSwap(false, true) {
		return nil, fmt.Errorf("the test breaks the stream: %w", errdefs.ErrBroken)
	}
	return f.EventStream.Submit(ctx, b)
}

// The stream that replaces a broken one must also wait for the work. Otherwise it reads pages
// before they are written.
func TestReplacedStreamWaitsForRecordedWorkToo(t *testing.T) {
	t.Parallel()
	for _, layerwise := range []bool{false, true} {
		var broken atomic.Bool
		r := newRig(t, rigOptions{wrapDump: func(st stream.Stream) stream.Stream {
			es, ok := st.(stream.EventStream)
			if !ok {
				t.Errorf("%T does not support events", st)
			}
			return frail{es, &broken}
		}})
		r.poison(0)
		w := r.recordWork(0, 1)
		d := r.dumpAfter(w, layerwise, 1)
		if !unresolved(d.Done()) {
			t.Error("the dump did not wait")
		}
		w.end()
		r.must(d.Durable(r.ctx()))
		r.mustLoad(1)
		if !broken.Load() || w.asked.Load() < 2 {
			t.Errorf("broken %v, streams were made to wait %d times", broken.Load(), w.asked.Load())
		}
	}
}

// fakeProgress is a Progress that records its calls.
type fakeProgress struct {
	mu     sync.Mutex
	steps  []int
	ends   []error
	wanted atomic.Int64
}

func (p *fakeProgress) Advance(shards int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.steps = append(p.steps, shards)
}

func (p *fakeProgress) Wanted() int { return int(p.wanted.Load()) }

func (p *fakeProgress) Set(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ends = append(p.ends, err)
}

func (p *fakeProgress) reported() (steps []int, ends []error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.steps), slices.Clone(p.ends)
}

func TestLoadReportsItsProgress(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigOptions{})
	r.dump(1, 2)
	for layerwise, want := range map[bool][]int{false: nil, true: {1, 2, 3}} {
		p := &fakeProgress{}
		for _, err := range r.load(store.LoadOptions{Layerwise: layerwise, Progress: p}, 1, 2) {
			r.must(err)
		}
		r.eventually(func() bool { _, ends := p.reported(); return len(ends) > 0 })
		if steps, ends := p.reported(); !slices.Equal(steps, want) || len(ends) != 1 || ends[0] != nil {
			t.Errorf("layerwise %v: reported steps %v and ends %v", layerwise, steps, ends)
		}
		p = &fakeProgress{}
		r.load(store.LoadOptions{Layerwise: layerwise, Progress: p}, 1, 9)
		r.eventually(func() bool { _, ends := p.reported(); return len(ends) > 0 })
		if _, ends := p.reported(); len(ends) != 1 || !errors.Is(ends[0], errdefs.ErrNotFound) {
			t.Errorf("layerwise %v: a load that fails ends with %v", layerwise, ends)
		}
	}
}

// The error of Wait joins one BlockError for each failed block.
func TestWaitJoinsOneErrorABlock(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigOptions{})
	l, err := r.st.Load(r.ctx(), nil, r.pages, r.refs(0, 7, 8, 9), store.LoadOptions{})
	r.must(err)
	joined, ok := l.Wait(r.ctx()).(interface{ Unwrap() []error })
	if !ok {
		t.Fatal("the errors are not joined")
	}
	for _, err := range joined.Unwrap() {
		if of, ok := err.(*store.BlockError); !ok || !errors.Is(of, errdefs.ErrNotFound) { //nolint:errorlint // a joined error must be a BlockError itself
			t.Errorf("a joined error is %v", err)
		}
	}
	if n := len(joined.Unwrap()); n != 3 {
		t.Errorf("%d errors of 3 blocks", n)
	}
}

// If a load does not end, streams stop waiting for it after a limit, and all of its blocks fail.
// The load itself continues.
func TestLoadThatIsWaitedForExpires(t *testing.T) {
	t.Parallel()
	clock := clockwork.NewFakeClock()
	leased := &manualStream{}
	var reported atomic.Int32
	r := newRig(t, rigOptions{
		clock: clock, planeBytes: 4096, wrapLoad: func(st stream.Stream) stream.Stream { leased.Stream = st; return leased },
		tune: func(c *store.Config) {
			c.WaitMax = time.Minute
			c.Hooks.LoadExpired = func(error) { reported.Add(1) }
		},
	})
	r.dump(1)
	p := &fakeProgress{}
	l, err := r.st.Load(r.ctx(), nil, r.pages, r.refs(0, 1), store.LoadOptions{Progress: p})
	r.must(err)
	r.eventually(func() bool { return leased.count() == 1 })
	clock.Advance(time.Minute - time.Millisecond)
	time.Sleep(10 * time.Millisecond)
	if _, ends := p.reported(); len(ends) != 0 {
		t.Fatalf("the wait ended too early: %v", ends)
	}
	clock.Advance(time.Millisecond)
	r.eventually(func() bool { return reported.Load() == 1 })
	if _, ends := p.reported(); len(ends) != 1 || !errors.Is(ends[0], errdefs.ErrExpired) {
		t.Errorf("reported %v", ends)
	}
	if n := r.st.Stats().LoadsExpired; n != 1 || !unresolved(l.Done()) {
		t.Errorf("%d loads expired, and this one is over: %v", n, l.Errs())
	}
	leased.complete(0, true)
	if err := l.Wait(r.ctx()); !errors.Is(err, errdefs.ErrExpired) {
		t.Errorf("the load ended with %v", err)
	}
	for i, err := range l.Errs() {
		var of *store.BlockError
		if !errors.Is(err, errdefs.ErrExpired) || !errors.As(err, &of) || !of.Undefined || of.Key != r.refs(0, 1)[i].Key {
			t.Errorf("block %d: %v", i, err)
		}
	}
	if n := r.st.Stats().LoadErrors; n != 1 {
		t.Errorf("%d blocks are counted as failed", n)
	}
	if _, ends := p.reported(); len(ends) != 1 {
		t.Errorf("the end was reported twice: %v", ends)
	}
}
