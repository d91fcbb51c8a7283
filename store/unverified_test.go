package store_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jonboulle/clockwork"
	"golang.org/x/sync/errgroup"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/store"
	"github.com/kvlane/kvlane/stream"
	"github.com/kvlane/kvlane/tier"
	"github.com/kvlane/kvlane/tier/faulty"
	"github.com/kvlane/kvlane/tier/file"
)

// readTier counts the verified and the unverified reads of a file tier, and can corrupt unverified
// ones.
type readTier struct {
	*file.Tier
	gets, reads atomic.Int64
	spoil       atomic.Int64 // number of unverified reads still to corrupt
}

func (c *readTier) Get(ctx context.Context, key block.Key, dst mem.Extent) error {
	c.gets.Add(1)
	return c.Tier.Get(ctx, key, dst)
}

func (c *readTier) Read(ctx context.Context, key block.Key, dst mem.Extent) error {
	c.reads.Add(1)
	err := c.Tier.Read(ctx, key, dst)
	if err == nil && c.spoil.Add(-1) >= 0 {
		b := dst.Bytes()
		b[len(b)-1] ^= 1
	}
	return err
}

func (c *readTier) want(t *testing.T, reads, gets int64) {
	t.Helper()
	if c.reads.Load() != reads || c.gets.Load() != gets {
		t.Errorf("%d reads and %d verified ones, want %d and %d", c.reads.Load(), c.gets.Load(), reads, gets)
	}
	c.reads.Store(0)
	c.gets.Store(0)
}

// newReadRig returns a store with a readTier. It dumps the blocks and removes them from the cache.
func newReadRig(t *testing.T, o rigOptions, ns ...int) (*rig, *readTier, *corruptReports) {
	t.Helper()
	c, reports := &readTier{}, &corruptReports{}
	o.dirs, o.planeBytes = []string{t.TempDir()}, leafy
	o.wrapFile = func(tr tier.Tier) tier.Tier {
		f, ok := tr.(*file.Tier)
		if !ok {
			t.Fatalf("the file tier is a %T", tr)
		}
		c.Tier = f
		return c
	}
	tune := o.tune
	o.tune = func(sc *store.Config) {
		sc.Hooks.Corrupt = reports.corrupt
		if tune != nil {
			tune(sc)
		}
	}
	if o.path == stream.PathNone {
		o.path = stream.PathKernel
	}
	r := newRig(t, o)
	r.dump(ns...)
	r.forgetCached(ns...)
	return r, c, reports
}

func (r *rig) forgetCached(ns ...int) {
	r.tb.Helper()
	for _, n := range ns {
		if err := r.cache.Delete(r.ctx(), r.key(n)); err != nil && !r.o.window {
			r.tb.Fatal(err)
		}
	}
}

// corruptReports records the reports of corrupt blocks.
type corruptReports struct {
	mu    sync.Mutex
	tiers []string
}

func (s *corruptReports) corrupt(tier string, _ block.Key, _ error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tiers = append(s.tiers, tier)
}

func (s *corruptReports) want(t *testing.T, tiers ...string) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.Equal(s.tiers, tiers) {
		t.Errorf("corrupt blocks reported in %q, want %q", s.tiers, tiers)
	}
}

// flipFile damages a byte of shard k in the file of block n.
func (r *rig) flipFile(n, k int) {
	r.tb.Helper()
	name := r.key(n).String()
	f, err := os.OpenFile(filepath.Join(r.o.dirs[0], name[:2], name), os.O_RDWR, 0)
	r.must(err)
	var b [1]byte
	off := r.format.Layout.ShardOff(k) + 5
	_, err = f.ReadAt(b[:], off)
	r.must(err)
	b[0] ^= 0x20
	_, err = f.WriteAt(b[:], off)
	r.must(err)
	r.must(f.Close())
}

// announced is a stream that reports each submitted batch and delays it until release is closed.
type announced struct {
	stream.Stream
	submitted chan<- struct{}
	release   <-chan struct{}
}

func (a *announced) Submit(ctx context.Context, b *mem.Batch) (*stream.Ticket, error) {
	a.submitted <- struct{}{}
	<-a.release
	return a.Stream.Submit(ctx, b)
}

// If the copy to pages computes checksums, a block is read once, and the read does not verify it.
func TestBlocksFromBelowAreVerifiedOnTheirWay(t *testing.T) {
	t.Parallel()
	for _, window := range []bool{false, true} {
		for _, path := range []stream.Path{stream.PathKernel, stream.PathStaged} {
			for _, layerwise := range []bool{false, true} {
				r, c, reports := newReadRig(t, rigOptions{window: window, path: path}, 1, 2, 3)
				for _, err := range r.load(store.LoadOptions{Layerwise: layerwise}, 1, 2, 3) {
					r.must(err)
				}
				c.want(t, 3, 0)
				st := r.st.Stats()
				if st.VerifiedOnWay != 3 || st.VerifiedByCPU != 0 || st.Tiers[1].Hits != 3 || st.Mismatches != 0 {
					t.Errorf("%d blocks verified on their way, %d by the CPU, %d hits, %d mismatches", st.VerifiedOnWay, st.VerifiedByCPU, st.Tiers[1].Hits, st.Mismatches)
				}
				reports.want(t)
				if r.mustLoad(1, 2, 3); !window { // the blocks are now in the cache
					c.want(t, 0, 0)
				}
			}
		}
	}
}

// Loads without checksums, loads that trust the cache, and prefetches verify every read.
func TestOnlyLoadsThatSumReadUnverified(t *testing.T) {
	t.Parallel()
	for _, policy := range []store.VerifyPolicy{store.VerifyAlways, store.VerifyFill} {
		r, c, _ := newReadRig(t, rigOptions{tune: func(c *store.Config) { c.Verify = policy }}, 1)
		r.mustLoad(1)
		c.want(t, 0, 1)
	}
	r, c, _ := newReadRig(t, rigOptions{}, 1)
	p, err := r.st.Prefetch(r.ctx(), r.keys(1))
	r.must(err)
	r.must(p.Wait(r.ctx()))
	c.want(t, 0, 1)

	// If a stream is asked for checksums but computes none, the CPU verifies the block.
	r, c, _ = newReadRig(t, rigOptions{sumEvery: noSums}, 1, 2)
	r.mustLoad(1, 2)
	c.want(t, 2, 0)
	if st := r.st.Stats(); st.VerifiedOnWay != 0 || st.VerifiedByCPU != 2 {
		t.Errorf("%d blocks verified on their way, %d by the CPU, want 0 and 2", st.VerifiedOnWay, st.VerifiedByCPU)
	}
}

// A flipped bit in a file is detected on the page. The file is moved aside, and the block is then a
// miss.
func TestDefectDamagedFileIsFoundOnTheWay(t *testing.T) {
	t.Parallel()
	for _, window := range []bool{false, true} {
		for _, every := range []int{0, noSums} {
			for _, layerwise := range []bool{false, true} {
				r, c, reports := newReadRig(t, rigOptions{window: window, sumEvery: every}, 1, 2)
				r.flipFile(1, 1)
				errs := r.load(store.LoadOptions{Layerwise: layerwise}, 1, 2)
				wantErr(t, errs[0], errdefs.ErrCorrupt)
				r.must(errs[1])
				c.want(t, 2, 1)
				reports.want(t, "file")
				st := r.st.Stats()
				if st.Mismatches != 1 || st.Tiers[1].Tier.Corrupt != 1 || st.Tiers[1].Tier.Quarantined != 1 || st.BadCopies != 0 {
					t.Errorf("%d mismatches, %d corrupt files, %d set aside, %d bad copies", st.Mismatches, st.Tiers[1].Tier.Corrupt, st.Tiers[1].Tier.Quarantined, st.BadCopies)
				}
				r.wantHits(false, 1)
				wantErr(t, r.load(store.LoadOptions{Layerwise: layerwise}, 1)[0], errdefs.ErrNotFound)
				r.dump(1)
				r.mustLoad(1, 2)
			}
		}
	}
}

// A corrupt file counts as an error of the file tier, and not of the cache into whose slot it was
// read.
func TestDefectDamagedFileIsAnErrorOfTheCache(t *testing.T) {
	t.Parallel()
	for _, every := range []int{0, noSums} {
		r, _, _ := newReadRig(t, rigOptions{sumEvery: every}, 1)
		r.flipFile(1, 1)
		wantErr(t, r.load(store.LoadOptions{}, 1)[0], errdefs.ErrCorrupt)
		st := r.st.Stats()
		if cache, file := st.Tiers[0].Tier, st.Tiers[1].Tier; cache.Errors+cache.Corrupt != 0 || file.Corrupt != 1 || file.Errors != 0 {
			t.Errorf("cache: %d errors, %d corrupt; file: %d errors, %d corrupt", cache.Errors, cache.Corrupt, file.Errors, file.Corrupt)
		}
	}
}

// If one read returned wrong bytes, the block is read and verified again, and the load succeeds.
func TestBlockThatIsReadWrongIsReadAgain(t *testing.T) {
	t.Parallel()
	for _, window := range []bool{false, true} {
		r, c, reports := newReadRig(t, rigOptions{window: window}, 1)
		c.spoil.Store(1)
		r.mustLoad(1)
		c.want(t, 1, 1)
		reports.want(t, "file")
		if st := r.st.Stats(); st.Mismatches != 1 || st.Refills != 1 || st.Tiers[1].Tier.Corrupt != 0 {
			t.Errorf("%d mismatches, %d refills, %d corrupt files", st.Mismatches, st.Refills, st.Tiers[1].Tier.Corrupt)
		}
		r.wantHits(true, 1)
	}
}

// Concurrent loads of a damaged block return no wrong byte, and the file is moved aside once.
func TestDefectManyLoadsOfADamagedFile(t *testing.T) {
	t.Parallel()
	for _, window := range []bool{false, true} {
		const loads = 8
		r, _, _ := newReadRig(t, rigOptions{window: window, slots: 6, pages: 3 * loads}, 1, 2, 3)
		r.flipFile(2, 0)
		var g errgroup.Group
		for k := range loads {
			g.Go(func() error {
				l, err := r.st.Load(r.ctx(), nil, r.pages, r.refs(3*k, 1, 2, 3), store.LoadOptions{Layerwise: k%2 == 1})
				if err != nil {
					return err
				}
				errs := r.loaded(l)
				if errs[1] == nil {
					t.Error("a damaged block was loaded")
				}
				return errs[0]
			})
		}
		r.must(g.Wait())
		for k := range loads {
			r.must(r.checkPage(uint32(3*k), 1))
			r.must(r.checkPage(uint32(3*k+2), 3))
		}
		if st := r.st.Stats().Tiers[1].Tier; st.Corrupt != 1 || st.Quarantined != 1 {
			t.Errorf("%d corrupt files, %d set aside, want 1", st.Corrupt, st.Quarantined)
		}
		if st := r.st.Stats(); st.Mismatches != 1 {
			t.Errorf("%d mismatches, want 1", st.Mismatches)
		}
	}
}

// A lookup does not return an unverified block, and dumps do not skip it.
func TestDefectUnverifiedBlockIsNotTrusted(t *testing.T) {
	t.Parallel()
	submitted, release := make(chan struct{}, 8), make(chan struct{})
	r, _, _ := newReadRig(t, rigOptions{wrapLoad: func(st stream.Stream) stream.Stream {
		return &announced{Stream: st, submitted: submitted, release: release}
	}}, 1)
	r.flipFile(1, 2)
	l, err := r.st.Load(r.ctx(), nil, r.pages, r.refs(4, 1), store.LoadOptions{})
	r.must(err)
	<-submitted
	states := make([]tier.State, 1)
	r.must(r.cache.Lookup(r.ctx(), r.keys(1), states))
	if states[0] != tier.Filling {
		t.Errorf("the block is %s in the cache before it was verified", states[0])
	}
	d := r.startDump(1) // the page has the right bytes
	close(release)
	// The load's second read may find the block that the dump has stored.
	if err := r.loaded(l)[0]; err == nil {
		r.must(r.checkPage(4, 1))
	} else {
		wantErr(t, err, errdefs.ErrCorrupt)
	}
	r.must(d.Durable(r.ctx()))
	r.mustLoad(1)
	if st := r.st.Stats(); st.DumpErrors != 0 {
		t.Errorf("%d blocks were not dumped", st.DumpErrors)
	}
}

// The CPU verified a block, and the cache then refused to publish its slot. The copy still read
// that slot, which may belong to another block by then.
func TestDefectRefusedSlotIsNotCopiedFrom(t *testing.T) {
	plan := fault.New(1)
	writes := block.SumXXH3 // streams do not compute XXH3, so the CPU verifies before the copy
	r := newRig(t, rigOptions{
		planeBytes: leafy, sumEvery: 1, dirs: []string{t.TempDir()}, path: stream.PathKernel,
		wrapCache: func(tr tier.SlotTier) tier.SlotTier { return faulty.NewSlots(tr, plan, clockwork.NewRealClock()) },
		tune:      func(c *store.Config) { c.Formats[0].Sum = writes },
	})
	r.dump(1)
	r.closeStore()
	writes = block.SumTree
	r.openStore()
	plan.Add(fault.Nth(faulty.OpPublish, int(plan.Seen(faulty.OpPublish))).Fail(nil))
	for _, err := range r.load(store.LoadOptions{}, 1) {
		r.must(err)
	}
	if st := r.st.Stats(); plan.Injected() != 1 || st.Refills != 1 || st.VerifiedByCPU != 1 {
		t.Errorf("%d faults, %d blocks read anew, %d verified by the CPU", plan.Injected(), st.Refills, st.VerifiedByCPU)
	}
}
