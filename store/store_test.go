package store_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jonboulle/clockwork"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/store"
	"github.com/kvlane/kvlane/stream"
)

// Configuration values that are too large are refused before the store allocates memory for them.
func TestDefectAbsurdNumbersOfTheConfigAreRefused(t *testing.T) {
	t.Parallel()
	_, err := store.Open(store.Config{Readers: math.MaxInt64, Writers: math.MaxInt64, Checkers: math.MaxInt64, Tasks: math.MaxInt64})
	wantErr(t, err, errdefs.ErrInvalid)
	for _, want := range []string{"readers is 9223372036854775807: must be at most 4096", "writers", "checkers", "tasks"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not contain %q: %v", want, err)
		}
	}
}

func TestConfigNamesEveryProblem(t *testing.T) {
	t.Parallel()
	_, err := store.Open(store.Config{Readers: -1, Verify: 9})
	wantErr(t, err, errdefs.ErrInvalid)
	for _, want := range []string{"0 formats", "no cache tier", "OpenLoad", "verify policy 9", "readers is -1"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not contain %q: %v", want, err)
		}
	}
}

func TestRoundTrip(t *testing.T) {
	t.Parallel()
	for _, path := range []stream.Path{stream.PathNone, stream.PathCopyEngine, stream.PathKernel} {
		for _, layerwise := range []bool{false, true} {
			for _, files := range []bool{false, true} {
				t.Run(fmt.Sprintf("%v/layerwise=%v/files=%v", path, layerwise, files), func(t *testing.T) {
					t.Parallel()
					o := rigOptions{path: path}
					if files {
						o.dirs = []string{t.TempDir()}
					}
					roundTrip(t, newRig(t, o), layerwise, files)
				})
			}
		}
	}
}

func roundTrip(t *testing.T, r *rig, layerwise, files bool) {
	t.Helper()
	ns := []int{5, 6, 7, 8, 9}
	refs := r.refs(0, ns...)
	for i, n := range ns {
		r.fill(refs[i].Page, n)
	}
	d, err := r.st.Dump(r.ctx(), r.pages, refs, store.DumpOptions{Layerwise: layerwise})
	r.must(err)
	for i := range r.o.shards {
		if layerwise {
			r.must(d.SubmitShard(r.ctx(), i))
		}
	}
	r.must(d.SourceFree(r.ctx()))
	r.must(d.Durable(r.ctx()))
	var bytes int64
	for _, c := range d.Paths() {
		bytes += c.Bytes
	}
	if want := r.blockBytes() * int64(len(ns)); bytes != want || d.Skipped() != 0 {
		t.Fatalf("dumped %d bytes and skipped %d blocks, want %d and 0", bytes, d.Skipped(), want)
	}
	r.wantHits(true, ns...)
	for _, err := range r.load(store.LoadOptions{Layerwise: layerwise}, ns...) {
		r.must(err)
	}
	if d := r.dump(ns...); d.Skipped() != len(ns) {
		t.Fatalf("a second dump skipped %d of %d blocks", d.Skipped(), len(ns))
	}
	r.closeStore()
	r.openStore()
	r.wantHits(files, ns...)
	for _, err := range r.load(store.LoadOptions{Layerwise: layerwise}, ns...) {
		if files {
			r.must(err)
		} else {
			wantErr(t, err, errdefs.ErrNotFound)
		}
	}
	if files {
		st := r.st.Stats()
		if st.Tiers[1].Hits != int64(len(ns)) {
			t.Fatalf("%d blocks were served from files, want %d", st.Tiers[1].Hits, len(ns))
		}
	}
}

func TestBadRefsAreRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigOptions{})
	_, err := r.st.Load(r.ctx(), nil, r.pages, []store.Ref{{Key: r.key(1), Page: 3}, {Key: r.key(2), Page: 3}}, store.LoadOptions{})
	wantErr(t, err, errdefs.ErrInvalid)
	_, err = r.st.Load(r.ctx(), nil, r.pages, r.refs(r.o.pages, 1), store.LoadOptions{})
	wantErr(t, err, errdefs.ErrInvalid)
	_, err = r.st.Dump(r.ctx(), r.pages, r.refs(r.o.pages, 1), store.DumpOptions{})
	wantErr(t, err, errdefs.ErrInvalid)
	_, err = r.st.Dump(r.ctx(), nil, nil, store.DumpOptions{})
	wantErr(t, err, errdefs.ErrInvalid)

	planes := func(change func(*mem.Plane)) *store.Pages {
		p := &store.Pages{}
		for _, pl := range r.pages.Shards {
			p.Shards = append(p.Shards, slices.Clone(pl))
		}
		change(&p.Shards[1][1])
		return p
	}
	for name, p := range map[string]*store.Pages{
		"gap":     planes(func(pl *mem.Plane) { pl.Bytes -= 8 }),
		"overlap": planes(func(pl *mem.Plane) { pl.SlotOff -= 8 }),
		"outside": planes(func(pl *mem.Plane) { pl.SlotOff += 8 }),
		"shard":   {Shards: r.pages.Shards[:2]},
	} {
		if _, err := r.st.Load(r.ctx(), nil, p, nil, store.LoadOptions{}); !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("pages with the fault %q: %v", name, err)
		}
	}
	// A dump may name the same page twice: it reads the page twice.
	r.fill(0, 1)
	d, err := r.st.Dump(r.ctx(), r.pages, []store.Ref{{Key: r.key(1)}, {Key: r.key(1)}}, store.DumpOptions{})
	r.must(err)
	r.must(d.Durable(r.ctx()))
	r.mustLoad(1)
}

// eventually waits until ok returns true.
func (r *rig) eventually(ok func() bool) {
	r.tb.Helper()
	for deadline := time.Now().Add(patience); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			r.tb.Fatal("the condition did not become true in time")
		}
	}
}

func TestDumpLargerThanTheCache(t *testing.T) {
	t.Parallel()
	for _, layerwise := range []bool{false, true} {
		r := newRig(t, rigOptions{slots: 3, pages: 40, dirs: []string{t.TempDir()}})
		var ns []int
		for n := range 40 {
			ns = append(ns, n)
			r.fill(uint32(n), n)
		}
		d, err := r.st.Dump(r.ctx(), r.pages, r.refs(0, ns...), store.DumpOptions{Layerwise: layerwise})
		r.must(err)
		for i := range r.o.shards {
			if layerwise {
				r.must(d.SubmitShard(r.ctx(), r.o.shards-1-i))
			}
		}
		r.must(d.Durable(r.ctx()))
		r.closeStore()
		r.openStore()
		for _, err := range r.load(store.LoadOptions{Layerwise: layerwise}, ns...) {
			r.must(err)
		}
	}
}

func TestManyTasksShareAFewSlots(t *testing.T) {
	t.Parallel()
	for _, slots := range []int{2, 3, 5} {
		r := newRig(t, rigOptions{slots: slots, pages: 48, dirs: []string{t.TempDir()}, tune: func(c *store.Config) { c.Readers, c.Writers = 2, 2 }})
		var wg sync.WaitGroup
		for w := range 6 {
			wg.Go(func() {
				for round := range 4 {
					if err := shareSlots(r, w, round); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
	}
}

// shareSlots dumps, leases and loads blocks that other workers use too. No other worker uses its
// pages.
func shareSlots(r *rig, w, round int) error {
	first := w * 8
	var ns []int
	for i := range 8 {
		ns = append(ns, (w*3+i+round*5)%20)
	}
	refs := r.refs(first, ns...)
	for i, n := range ns {
		r.fill(refs[i].Page, n)
	}
	d, err := r.st.Dump(r.ctx(), r.pages, refs, store.DumpOptions{Layerwise: w%2 == 0})
	if err != nil {
		return err
	}
	for i := range r.o.shards {
		if w%2 == 0 {
			if err := d.SubmitShard(r.ctx(), i); err != nil {
				return err
			}
		}
	}
	if err := d.Durable(r.ctx()); err != nil {
		return err
	}
	l, err := r.st.LeasePrefix(r.ctx(), r.keys(ns...), 0)
	if err != nil {
		return err
	}
	defer l.Release()
	if l.Len() != len(ns) {
		return fmt.Errorf("leased %d of %d durable blocks", l.Len(), len(ns))
	}
	for _, ref := range refs {
		r.poison(ref.Page)
	}
	t, err := r.st.Load(r.ctx(), l, r.pages, refs, store.LoadOptions{Layerwise: w%3 == 0})
	if err != nil {
		return err
	}
	if err := t.Wait(r.ctx()); err != nil {
		return err
	}
	for i, n := range ns {
		if err := r.checkPage(refs[i].Page, n); err != nil {
			return err
		}
	}
	return nil
}

func TestLayerwiseLoadHandsOutShardsInOrder(t *testing.T) {
	t.Parallel()
	r, leased := newManualRig(t)
	l := r.startManual(leased)
	for k := range r.o.shards {
		ctx, cancel := context.WithTimeout(r.ctx(), 10*time.Millisecond)
		wantErr(t, l.WaitShard(ctx, k), context.DeadlineExceeded)
		cancel()
		leased.complete(k, true)
		r.must(l.WaitShard(r.ctx(), k))
	}
	r.must(l.Wait(r.ctx()))
	wantErr(t, l.WaitShard(r.ctx(), 3), errdefs.ErrInvalid)
}

func TestLayerwiseDumpIsNotKeptOpenForEver(t *testing.T) {
	t.Parallel()
	clock := clockwork.NewFakeClock()
	r := newRig(t, rigOptions{clock: clock, tune: func(c *store.Config) { c.LeaseMax = time.Minute }})
	r.fill(0, 1)
	d, err := r.st.Dump(r.ctx(), r.pages, r.refs(0, 1), store.DumpOptions{Layerwise: true})
	r.must(err)
	r.must(d.SubmitShard(r.ctx(), 0))
	r.eventually(func() bool { clock.Advance(time.Minute); return !unresolved(d.Done()) })
	wantErr(t, d.Durable(r.ctx()), errdefs.ErrExpired)
	r.must(d.SourceFree(r.ctx()))
	r.wantHits(false, 1)
}

// A layerwise dump releases its slots after a copy fails.
func TestLayerwiseDumpEndsWithTheFirstCopyThatFails(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigOptions{path: stream.PathKernel, clock: clockwork.NewFakeClock()})
	r.fill(0, 1)
	d, err := r.st.Dump(r.ctx(), r.pages, r.refs(0, 1), store.DumpOptions{Layerwise: true})
	r.must(err)
	r.plan.Add(r.next(sim.OpLaunch, fault.Nth).Fail(nil))
	r.must(d.SubmitShard(r.ctx(), 0))
	r.resolved(d.Done())
	wantErr(t, d.Errs()[0], fault.ErrInjected)
}

// dependency is a mem.Dependency that a test resolves.
type dependency struct {
	done chan struct{}
	err  error
}

func (d *dependency) Done() <-chan struct{} { return d.done }
func (d *dependency) Err() error            { return d.err }

func TestDumpWaitsForItsDependencies(t *testing.T) {
	t.Parallel()
	cause := errors.New("the computation failed")
	for _, layerwise := range []bool{false, true} {
		for _, result := range []error{nil, cause} {
			r := newRig(t, rigOptions{})
			dep := &dependency{done: make(chan struct{}), err: result}
			o := store.DumpOptions{Layerwise: layerwise}
			if !layerwise {
				o.After = []mem.Dependency{dep}
			}
			d, err := r.st.Dump(r.ctx(), r.pages, r.refs(0, 1), o)
			r.must(err)
			for i := range r.o.shards {
				if layerwise {
					r.must(d.SubmitShard(r.ctx(), i, dep))
				}
			}
			if !unresolved(d.Done()) {
				t.Fatal("the dump did not wait for its dependency")
			}
			r.fill(0, 1) // simulates the work of the dependency
			close(dep.done)
			err = d.Durable(r.ctx())
			if result != nil {
				wantErr(t, err, cause)
				r.wantHits(false, 1)
				continue
			}
			r.must(err)
			r.mustLoad(1)
		}
	}
}

func TestCorruptCachedCopyIsReadAnewFromBelow(t *testing.T) {
	t.Parallel()
	for _, files := range []bool{true, false} {
		var mu sync.Mutex
		var reported []string
		o := rigOptions{tune: func(c *store.Config) {
			c.Hooks.Corrupt = func(tr string, _ block.Key, _ error) { mu.Lock(); reported = append(reported, tr); mu.Unlock() }
		}}
		if files {
			o.dirs = []string{t.TempDir()}
		}
		r := newRig(t, o)
		r.dump(1, 2)
		sl, err := r.cache.Open(r.ctx(), r.key(1))
		r.must(err)
		off := r.format.Layout.ShardOff(1) + 3
		sl.Extent().Bytes()[off] ^= 4
		sl.Release()
		lease, err := r.st.LeasePrefix(r.ctx(), r.keys(1, 2), 0)
		r.must(err)
		l, err := r.st.Load(r.ctx(), lease, r.pages, r.refs(4, 1, 2), store.LoadOptions{})
		r.must(err)
		errs := r.loaded(l)
		lease.Release()
		r.must(errs[1])
		if files {
			r.must(errs[0])
			r.must(r.checkPage(4, 1))
		} else {
			wantErr(t, errs[0], errdefs.ErrCorrupt)
			r.wantHits(false, 1)
		}
		if st := r.st.Stats(); st.Mismatches != 1 || !slices.Equal(reported, []string{"cache"}) {
			t.Fatalf("counted %d mismatches, the hook reported %q", st.Mismatches, reported)
		}
	}
}

func TestFillPolicyTrustsTheCacheAndNotTheFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r := newRig(t, rigOptions{tune: func(c *store.Config) { c.Verify = store.VerifyFill }, dirs: []string{dir}})
	r.dump(1, 2)
	flip := func(n int) {
		sl, err := r.cache.Open(r.ctx(), r.key(n))
		r.must(err)
		sl.Extent().Bytes()[r.format.Layout.ShardOff(0)] ^= 1
		sl.Release()
	}
	flip(1)
	l, err := r.st.Load(r.ctx(), nil, r.pages, r.refs(0, 1), store.LoadOptions{})
	r.must(err)
	r.must(l.Wait(r.ctx()))
	if r.checkPage(0, 1) == nil {
		t.Fatal("the flipped byte did not reach the page: the test does not test")
	}
	r.closeStore()
	path := blockFile(t, dir, r.key(2))
	b, err := os.ReadFile(path)
	r.must(err)
	b[r.format.Layout.ShardOff(2)] ^= 1
	r.must(os.WriteFile(path, b, 0o600))
	r.openStore()
	errs := r.load(store.LoadOptions{}, 1, 2)
	r.must(errs[0])
	wantErr(t, errs[1], errdefs.ErrCorrupt)
}

func TestPrefetchMovesBlocksUp(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigOptions{dirs: []string{t.TempDir()}})
	r.dump(1, 2, 3)
	r.closeStore()
	r.openStore()
	p, err := r.st.Prefetch(r.ctx(), r.keys(1, 2, 9))
	r.must(err)
	wantErr(t, p.Wait(r.ctx()), errdefs.ErrNotFound)
	if errs := p.Errs(); errs[0] != nil || errs[1] != nil || errs[2] == nil {
		t.Fatal(errs)
	}
	for i, want := range []string{"cache", "cache", "file"} {
		if got := r.hits(1, 2, 3)[i].Tier; got != want {
			t.Fatalf("block %d is in %q, want %q", i+1, got, want)
		}
	}
	if n := r.cache.Stats().Retained; n != 0 {
		t.Fatalf("%d pins are left", n)
	}
	r.mustLoad(1, 2, 3)
}

// A dump writes the cached copy of its block to the lower tiers. If that copy is damaged, the lower
// tiers refuse it and the dump fails. The store counts and removes the copy, so that the next dump
// stores the block.
func TestCorruptCachedCopyIsNotWrittenDown(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r := newRig(t, rigOptions{dirs: []string{dir}})
	r.dump(1)
	sl, err := r.cache.Open(r.ctx(), r.key(1))
	r.must(err)
	sl.Extent().Bytes()[r.format.Layout.ShardOff(0)] ^= 1
	sl.Release()
	r.must(os.Remove(findFile(dir, r.key(1))))

	r.fill(0, 1)
	d, err := r.st.Dump(r.ctx(), r.pages, r.refs(0, 1), store.DumpOptions{})
	r.must(err)
	wantErr(t, d.Durable(r.ctx()), errdefs.ErrCorrupt)
	if n := r.st.Stats().Mismatches; n != 1 {
		t.Errorf("%d mismatches were counted, want 1", n)
	}
	r.wantHits(false, 1)
	r.dump(1)
	r.mustLoad(1)
}
