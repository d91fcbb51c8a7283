package store_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/store"
	"github.com/kvlane/kvlane/stream"
	"github.com/kvlane/kvlane/tier"
	"github.com/kvlane/kvlane/tier/file"
)

// refusing refuses batches of one extent of that length.
type refusing struct {
	stream.Stream
	length int64
	left   *atomic.Int64 // batches to refuse
	err    error
}

func (s *refusing) Submit(ctx context.Context, b *mem.Batch) (*stream.Ticket, error) {
	if len(b.Dst) == 1 && b.Dst[0].Len == s.length && s.left.Add(-1) >= 0 {
		return nil, s.err
	}
	return s.Stream.Submit(ctx, b)
}

// A block whose header cannot be copied to device memory is written from pinned memory.
func TestHeaderThatCannotBeCopied(t *testing.T) {
	t.Parallel()
	var left atomic.Int64
	broken := errors.New("no copy")
	r, _, _ := newDirectRig(t, rigOptions{window: true, wrapLoad: func(st stream.Stream) stream.Stream {
		return &refusing{Stream: st, length: block.AlignBytes, left: &left, err: broken}
	}})
	left.Store(1)
	d := r.startDump(1, 2, 3)
	r.must(d.SourceFree(r.ctx()))
	for i := range 3 {
		r.poison(uint32(i))
	}
	r.must(d.Durable(r.ctx()))
	if st := r.st.Stats(); st.DirectDumped != 2 || st.DirectFailed != 0 || st.Fallbacks != 1 {
		t.Errorf("%d blocks were written directly, %d attempts failed, %d fallbacks", st.DirectDumped, st.DirectFailed, st.Fallbacks)
	}
	r.mustLoad(1, 2, 3)
}

// directTier intercepts direct writes of a tier.
type directTier struct {
	*file.Tier
	put func(ctx context.Context, put func() (bool, <-chan struct{}, error)) (bool, <-chan struct{}, error)
}

func (d *directTier) PutDirect(ctx context.Context, key block.Key, src mem.Extent) (bool, <-chan struct{}, error) {
	return d.put(ctx, func() (bool, <-chan struct{}, error) { return d.Tier.PutDirect(ctx, key, src) })
}

func (d *directTier) Put(ctx context.Context, key block.Key, src mem.Extent) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return d.Tier.Put(ctx, key, src)
}

func (r *rig) interceptPutDirect(put func(ctx context.Context, put func() (bool, <-chan struct{}, error)) (bool, <-chan struct{}, error)) {
	r.tb.Helper()
	r.closeStore()
	r.o.wrapFile = func(tr tier.Tier) tier.Tier {
		f, ok := tr.(*file.Tier)
		if !ok {
			r.tb.Fatalf("the file tier is a %T", tr)
		}
		return &directTier{f, put}
	}
	r.openStore()
}

// The copy through pinned memory of a block that was not written directly had only the rest of the
// time that the direct write had waited.
func TestDefectNoTimeIsLeftAfterADirectWrite(t *testing.T) {
	t.Parallel()
	r, _, _ := newDirectRig(t, rigOptions{window: true, tune: func(c *store.Config) { c.WaitMax = 50 * time.Millisecond }})
	r.interceptPutDirect(func(ctx context.Context, _ func() (bool, <-chan struct{}, error)) (bool, <-chan struct{}, error) {
		<-ctx.Done()
		return false, nil, tier.ErrDirectFailed
	})
	r.dump(1)
	if st := r.st.Stats(); st.DirectFailed != 1 || st.Dumped != 1 {
		t.Errorf("%d attempts failed, %d blocks were dumped", st.DirectFailed, st.Dumped)
	}
	r.mustLoad(1)
}

// The completion of a dump counted the bytes of a block that the tier had already.
func TestDefectBlockThatWasThereIsCounted(t *testing.T) {
	t.Parallel()
	r, _, _ := newDirectRig(t, rigOptions{window: true})
	r.interceptPutDirect(func(_ context.Context, put func() (bool, <-chan struct{}, error)) (bool, <-chan struct{}, error) {
		if written, quiesced, err := put(); !written || err != nil { // another task was faster
			return written, quiesced, err
		}
		return put()
	})
	for _, c := range r.dump(1, 2).Paths() {
		if c.Path == stream.PathCuFile {
			t.Errorf("a completion of %d bytes, which were not written", c.Bytes)
		}
	}
	if st := r.st.Stats(); st.DirectDumped != 0 || st.Dumped != 2 {
		t.Errorf("%d blocks were written directly, %d were dumped", st.DirectDumped, st.Dumped)
	}
	r.mustLoad(1, 2)
}

// hooked calls before once, at its first batch that is not paged.
type hooked struct {
	stream.EventStream
	before func()
}

func (s *hooked) Submit(ctx context.Context, b *mem.Batch) (*stream.Ticket, error) {
	if b.Paged == nil && len(b.Dst) > 0 {
		s.before()
	}
	return s.EventStream.Submit(ctx, b)
}

// The header of a direct dump does not wait for the work that another dump waits for.
func TestDirectDumpBesideOneThatWaits(t *testing.T) {
	t.Parallel()
	var once sync.Once
	var before func()
	r, _, _ := newDirectRig(t, rigOptions{window: true, pages: 64, wrapLoad: func(st stream.Stream) stream.Stream {
		es, ok := st.(stream.EventStream)
		if !ok {
			t.Fatalf("the stream is a %T", st)
		}
		return &hooked{es, func() { once.Do(before) }}
	}})
	r.fill(0, 2)
	r.fill(1, 1)
	w := r.recordWork(60, 60)
	var waiting *store.DumpTask
	before = func() {
		waiting = r.dumpAfter(w, false, 2)
		r.eventually(func() bool { return w.asked.Load() > 0 })
	}
	d, err := r.st.Dump(r.ctx(), r.pages, r.refs(1, 1), store.DumpOptions{})
	r.must(err)
	r.must(d.Durable(r.ctx()))
	if waiting == nil {
		t.Fatal("the header was copied by another stream than that of loads")
	}
	select {
	case <-waiting.Done():
		t.Error("the other dump did not wait")
	default:
	}
	w.end()
	r.must(waiting.Durable(r.ctx()))
	r.mustLoad(1, 2)
}
