package store_test

import (
	"context"
	"encoding/binary"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/store"
	"github.com/kvlane/kvlane/stream"
)

// manualStream accepts batches and copies nothing. The test resolves their tickets.
type manualStream struct {
	stream.Stream
	mu      sync.Mutex
	tickets []*stream.Ticket
	batches []*mem.Batch
}

func (h *manualStream) Submit(_ context.Context, b *mem.Batch) (*stream.Ticket, error) {
	if b.Paged == nil { // an empty batch probes whether the stream still works
		t := stream.NewTicket(1, nil)
		t.Resolve(stream.Completion{}, nil)
		return t, nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.tickets = append(h.tickets, stream.NewTicket(uint64(len(h.tickets)+1), nil))
	h.batches = append(h.batches, b)
	return h.tickets[len(h.tickets)-1], nil
}

func (h *manualStream) count() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.tickets)
}

// writeSums writes right or wrong checksums for page group n of the last batch.
func (h *manualStream) writeSums(n int, right bool) {
	p := h.batches[len(h.batches)-1].Paged
	sums := p.Sums
	for i := range n {
		leaves, _ := p.Groups[i].Leaves()
		sums = sums[leaves:]
	}
	group := &mem.Paged{Dir: p.Dir, Groups: p.Groups[n : n+1]}
	leaves, _ := p.Groups[n].Leaves()
	clear(sums[:leaves])
	if right {
		for _, slot := range group.Extents() {
			for b := slot.Bytes(); len(b) > 0; b = b[mem.LeafBytes:] {
				sums[0] = block.SumLeaf(b[:mem.LeafBytes])
				sums = sums[1:]
			}
		}
	}
}

// complete reports page group n of the last batch as completed, with right or wrong checksums.
// After the last group it resolves the ticket.
func (h *manualStream) complete(n int, right bool) {
	h.writeSums(n, right)
	p := h.batches[len(h.batches)-1].Paged
	if p.Completed(n+1, true); n+1 == len(p.Groups) {
		h.resolveLast()
	}
}

// resolveLast resolves the last ticket without an error.
func (h *manualStream) resolveLast() {
	h.tickets[len(h.tickets)-1].Resolve(stream.Completion{Summed: true}, nil)
}

// failLast resolves the last ticket with an error.
func (h *manualStream) failLast(err error) {
	h.tickets[len(h.tickets)-1].Resolve(stream.Completion{}, err)
}

// startManual starts a layerwise load of block 1 to page 0, and waits until its batch is submitted.
func (r *rig) startManual(h *manualStream) *store.LoadTask {
	r.tb.Helper()
	l, err := r.st.Load(r.ctx(), nil, r.pages, r.refs(0, 1), store.LoadOptions{Layerwise: true})
	r.must(err)
	r.eventually(func() bool { return h.count() == 1 })
	if n := len(h.batches[0].Paged.Groups); n != r.o.shards {
		r.tb.Fatalf("the batch has %d page groups, want one for each of %d shards", n, r.o.shards)
	}
	return l
}

func newManualRig(t *testing.T) (*rig, *manualStream) {
	t.Helper()
	h := &manualStream{}
	r := newRig(t, rigOptions{planeBytes: leafy, wrapLoad: func(st stream.Stream) stream.Stream { h.Stream = st; return h }})
	r.dump(1)
	return r, h
}

// Parts that completed before their batch failLast are valid. For later shards WaitShard returns the
// error once no copy is running.
func TestWaitShardReportsThatItsBatchFailed(t *testing.T) {
	t.Parallel()
	r, leased := newManualRig(t)
	l := r.startManual(leased)
	leased.complete(0, true)
	r.must(l.WaitShard(r.ctx(), 0))
	ctx, cancel := context.WithTimeout(r.ctx(), 20*time.Millisecond)
	defer cancel()
	wantErr(t, l.WaitShard(ctx, 1), context.DeadlineExceeded)
	cause := errors.New("the copy failed")
	leased.failLast(cause)
	wantErr(t, l.WaitShard(r.ctx(), 1), cause)
	wantErr(t, l.WaitShard(r.ctx(), 2), cause)
	wantErr(t, l.Wait(r.ctx()), cause)
}

// If the copy of a shard is wrong, that shard and the later shards of the block are copied again.
func TestWrongShardIsCopiedAgainWithThoseBehindIt(t *testing.T) {
	t.Parallel()
	r, leased := newManualRig(t)
	l := r.startManual(leased)
	leased.complete(0, true)
	leased.complete(1, false)
	leased.complete(2, true)
	r.eventually(func() bool { return leased.count() == 2 })
	if n := len(leased.batches[1].Paged.Groups); n != r.o.shards-1 {
		t.Fatalf("%d shards are copied again, want %d", n, r.o.shards-1)
	}
	leased.complete(0, true)
	leased.failLast(errors.New("the copy failed"))
	r.resolved(l.Done())
	if err := l.Errs()[0]; err == nil {
		t.Error("the block is reported as loaded, but its last shard was not copied")
	}
}

// In a whole load each completed part gives its blocks their results and releases their slots.
// Later parts do not change these results. A block with a wrong copy keeps its slot, and is copied
// again after all other copies.
func TestPartsOfAWholeLoadAreResolvedAsTheyComplete(t *testing.T) {
	t.Parallel()
	leased, cause := &manualStream{}, errors.New("the copy failed")
	r := newRig(t, rigOptions{
		planeBytes: leafy, wrapLoad: func(st stream.Stream) stream.Stream { leased.Stream = st; return leased },
		tune: func(c *store.Config) { c.PartBytes = 1 }, // one block for each part
	})
	r.dump(1, 2, 3, 4)
	l, err := r.st.Load(r.ctx(), nil, r.pages, r.refs(0, 1, 2, 3, 4), store.LoadOptions{})
	r.must(err)
	r.eventually(func() bool { return leased.count() == 1 })
	pinned := func(n int64) func() bool { return func() bool { return r.cache.Stats().Retained == n } }
	if n := len(leased.batches[0].Paged.Groups); n != 4 || !pinned(4)() {
		t.Fatalf("the batch has %d page groups, and %d slots are pinned; want 4", n, r.cache.Stats().Retained)
	}
	leased.complete(0, true)
	r.eventually(pinned(3))
	leased.writeSums(1, true)
	leased.complete(2, false) // the report covers groups 1 and 2
	r.eventually(pinned(2))
	if n := leased.count(); n != 1 {
		t.Fatalf("%d batches while the first is under way", n)
	}
	leased.failLast(cause)
	r.eventually(func() bool { return leased.count() == 2 })
	leased.complete(0, true)
	r.resolved(l.Done())
	for i, err := range l.Errs() {
		var b *store.BlockError
		if i < 3 && err != nil || i == 3 && (!errors.As(err, &b) || !b.Undefined || !errors.Is(err, cause)) {
			t.Errorf("block %d: %v", i+1, err)
		}
	}
	if st := r.st.Stats(); !pinned(0)() || st.Tiers[0].Hits != 3 || st.VerifiedOnWay != 3 || st.BadCopies != 1 || st.LoadErrors != 1 {
		t.Errorf("%d pins are left: %d hits, %d verified on their way, %d bad copies, %d errors", r.cache.Stats().Retained,
			st.Tiers[0].Hits, st.VerifiedOnWay, st.BadCopies, st.LoadErrors)
	}
}

// early is a manualStream that reports half of a batch as completed at once, without checksums.
type early struct{ *manualStream }

func (e early) Submit(ctx context.Context, b *mem.Batch) (*stream.Ticket, error) {
	if p := b.Paged; p != nil {
		p.Completed(len(p.Groups)/2, false)
	}
	return e.manualStream.Submit(ctx, b)
}

// A later part of a batch may have checksums although an earlier part had none. The store must not
// look for checksums of blocks that already have their result.
func TestSumsBehindPartsWithoutSums(t *testing.T) {
	t.Parallel()
	const batch, blocks = 128, 2 * 128 // the load is split into batches of 128 blocks
	leased := &manualStream{}
	r := newRig(t, rigOptions{
		slots: blocks, pages: blocks, shards: 1, planes: 1, planeBytes: mem.LeafBytes,
		wrapLoad: func(st stream.Stream) stream.Stream { leased.Stream = st; return early{leased} },
		tune:     func(c *store.Config) { c.PartBytes = 1 }, // one block for each part
	})
	ns := make([]int, blocks)
	for i := range ns {
		ns[i] = i
	}
	r.dump(ns...)
	l, err := r.st.Load(r.ctx(), nil, r.pages, r.refs(0, ns...), store.LoadOptions{})
	r.must(err)
	r.eventually(func() bool { return leased.count() == 2 && r.cache.Stats().Retained == blocks/2 })
	if n := len(leased.batches[1].Paged.Groups); n != batch {
		t.Fatalf("the second batch has %d page groups, want %d", n, batch)
	}
	for k := batch / 2; k < batch; k++ {
		leased.complete(k, true)
	}
	leased.batches[0].Paged.Completed(batch, false)
	leased.tickets[0].Resolve(stream.Completion{}, nil)
	r.must(l.Wait(r.ctx()))
	if st := r.st.Stats(); st.VerifiedByCPU != 3*batch/2 || st.VerifiedOnWay != batch/2 {
		t.Errorf("%d blocks were verified by the CPU and %d on their way, want %d and %d", st.VerifiedByCPU, st.VerifiedOnWay, 3*batch/2, batch/2)
	}
}

// A load whose blocks all have results ends only after its batch resolves.
func TestLoadWaitsForItsBatchBehindItsParts(t *testing.T) {
	t.Parallel()
	r, leased := newManualRig(t)
	l := r.startManual(leased)
	for k := range r.o.shards {
		leased.writeSums(k, true)
	}
	leased.batches[0].Paged.Completed(r.o.shards, true)
	r.eventually(func() bool { return r.cache.Stats().Retained == 0 })
	select {
	case <-l.Done():
		t.Error("the load is done, and its batch is not")
	case <-time.After(20 * time.Millisecond):
	}
	leased.resolveLast()
	r.resolved(l.Done())
	r.must(l.Errs()[0])
}

// If the algorithm field in the header of a slot is damaged after the slot was verified, the copy
// must still be verified.
func TestHeaderThatChangesUnderACopyExcusesNothing(t *testing.T) {
	t.Parallel()
	r, leased := newManualRig(t)
	l := r.startManual(leased)
	sl, err := r.cache.Open(r.ctx(), r.key(1))
	r.must(err)
	const sumAlgo = 24 // offset of the algorithm in the header
	binary.LittleEndian.PutUint32(sl.Extent().Bytes()[sumAlgo:], uint32(block.SumXXH3))
	sl.Release()
	for k := range r.o.shards {
		leased.complete(k, false)
	}
	r.resolved(l.Done())
	wantErr(t, l.Errs()[0], errdefs.ErrCorrupt)
}

// The error of a load reports whether the content of the page is undefined.
func TestBlockErrorReportsWhetherThePageIsUndefined(t *testing.T) {
	t.Parallel()
	r, leased := newManualRig(t)
	blockError := func(l *store.LoadTask) *store.BlockError {
		r.resolved(l.Done())
		var e *store.BlockError
		if !errors.As(l.Errs()[0], &e) || e.Op != "load" || e.Page != 0 {
			t.Fatalf("%#v is not the error of the load", l.Errs()[0])
		}
		return e
	}
	l, err := r.st.Load(r.ctx(), nil, r.pages, r.refs(0, 2), store.LoadOptions{})
	r.must(err)
	if e := blockError(l); e.Undefined || e.Key != r.key(2) || !errors.Is(e, errdefs.ErrNotFound) {
		t.Errorf("a block that is nowhere: %+v", e)
	}
	l = r.startManual(leased)
	leased.complete(0, true)
	leased.complete(1, true)
	leased.failLast(errdefs.ErrBroken)
	if e := blockError(l); !e.Undefined || e.Key != r.key(1) || !errors.Is(e, errdefs.ErrBroken) {
		t.Errorf("a block of which some was copied: %+v", e)
	}
}
