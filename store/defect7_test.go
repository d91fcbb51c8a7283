package store_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/store"
	"github.com/kvlane/kvlane/tier"
	"github.com/kvlane/kvlane/tier/file"
)

func TestDefect07BlockIsPublishedOnlyWithEveryShard(t *testing.T) {
	t.Parallel()
	for _, order := range [][]int{{2, 1, 0}, {2, 0, 1}, {0, 1, 2}} {
		r := newRig(t, rigOptions{dirs: []string{t.TempDir()}})
		r.fill(0, 1)
		r.fill(1, 2)
		d, err := r.st.Dump(r.ctx(), r.pages, r.refs(0, 1, 2), store.DumpOptions{Layerwise: true})
		r.must(err)
		for k, shard := range order {
			r.wantHits(false, 1, 2)
			if !unresolved(d.Done()) {
				t.Fatalf("the dump was done after %d of 3 shards", k)
			}
			r.must(d.SubmitShard(r.ctx(), shard))
			wantErr(t, d.SubmitShard(r.ctx(), shard), errdefs.ErrExists)
		}
		r.must(d.Durable(r.ctx()))
		r.wantHits(true, 1, 2)
		r.mustLoad(1, 2)
	}
}

func TestDefect07UnfinishedDumpPublishesNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigOptions{})
	r.fill(0, 1)
	d, err := r.st.Dump(r.ctx(), r.pages, r.refs(0, 1), store.DumpOptions{Layerwise: true})
	r.must(err)
	r.must(d.SubmitShard(r.ctx(), 2))
	r.must(d.SubmitShard(r.ctx(), 0))
	d.Cancel()
	wantErr(t, d.Durable(r.ctx()), errdefs.ErrCanceled)
	r.must(d.SourceFree(r.ctx()))
	r.wantHits(false, 1)
	wantErr(t, d.SubmitShard(r.ctx(), 1), errdefs.ErrCanceled)
}

func TestDefect07DamagedFileIsAMiss(t *testing.T) {
	t.Parallel()
	damage := map[string]func(path string) error{
		"truncated": func(p string) error { return os.Truncate(p, 5000) },
		"empty":     func(p string) error { return os.Truncate(p, 0) },
		"flipped": func(p string) error {
			b, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			b[len(b)/2] ^= 1
			return os.WriteFile(p, b, 0o600)
		},
		"removed": os.Remove,
	}
	for name, do := range damage {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			r := newRig(t, rigOptions{dirs: []string{dir}})
			r.dump(1, 2)
			r.closeStore()
			r.must(do(blockFile(t, dir, r.key(1))))
			r.openStore()
			errs := r.load(store.LoadOptions{}, 1, 2)
			if !errors.Is(errs[0], errdefs.ErrCorrupt) && !errors.Is(errs[0], errdefs.ErrNotFound) {
				t.Fatalf("loading the damaged block: %v", errs[0])
			}
			r.must(errs[1])
			r.wantHits(false, 1)
			r.dump(1) // the block can be stored again
			r.closeStore()
			r.openStore()
			r.mustLoad(1, 2)
		})
	}
}

// blockFile returns the path of a block's file.
func blockFile(t *testing.T, dir string, key block.Key) string {
	t.Helper()
	path := findFile(dir, key)
	if path == "" {
		t.Fatalf("no file of block %s under %s", key, dir)
	}
	return path
}

func findFile(dir string, key block.Key) string {
	name := key.String()
	path := filepath.Join(dir, name[:2], name)
	if _, err := os.Stat(path); err != nil {
		return ""
	}
	return path
}

func TestDefect07NothingIsRemovedBetweenLeaseAndLoad(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigOptions{dirs: []string{t.TempDir()}})
	r.dump(1)
	r.must(r.cache.Delete(r.ctx(), r.key(1)))
	l, err := r.st.LeasePrefix(r.ctx(), r.keys(1), 0)
	r.must(err)
	if l.Len() != 1 || l.Tier(0) != "file" {
		t.Fatalf("leased %d blocks", l.Len())
	}
	wantErr(t, r.file.Delete(r.ctx(), r.key(1)), errdefs.ErrBusy)
	task, err := r.st.Load(r.ctx(), l, r.pages, r.refs(0, 1), store.LoadOptions{})
	r.must(err)
	r.must(r.loaded(task)[0])
	r.must(r.checkPage(0, 1))
	l.Release()
	r.must(r.file.Delete(r.ctx(), r.key(1)))
}

func TestDefect08TasksNeverWaitedForDoNotLeak(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigOptions{dirs: []string{t.TempDir()}, tune: func(c *store.Config) { c.Tasks = 4 }})
	for n := range 8 {
		r.fill(uint32(n), n)
	}
	for n := range 40 {
		refs := r.refs(n%8, n%8)
		_, err := r.st.Dump(r.ctx(), r.pages, refs, store.DumpOptions{})
		r.must(err)
		_, err = r.st.Load(r.ctx(), nil, r.pages, r.refs(8+n%8, n%8), store.LoadOptions{})
		r.must(err)
		_, err = r.st.Prefetch(r.ctx(), r.keys(n%8))
		r.must(err)
		_, err = r.st.LeasePrefix(r.ctx(), r.keys(n%8), 0)
		r.must(err)
	}
	// TestMain checks goroutines and descriptors. The pins of slots are checked here.
	r.must(r.st.Close(r.ctx()))
	if st := r.cache.Stats(); st.Retained != 0 {
		t.Fatalf("%d pins are left after Close", st.Retained)
	}
	if n := r.st.Stats().Running; n != 0 {
		t.Fatalf("%d tasks are left after Close", n)
	}
}

func TestDefect08FailedTaskKeepsItsCause(t *testing.T) {
	t.Parallel()
	cause := errors.New("the cause of it all")
	r := newRig(t, rigOptions{})
	r.dump(1)
	r.plan.Add(r.next(sim.OpWork, fault.Nth).Fail(cause))
	l, err := r.st.Load(r.ctx(), nil, r.pages, r.refs(0, 1), store.LoadOptions{})
	r.must(err)
	err = r.loaded(l)[0]
	wantErr(t, err, cause, fault.ErrInjected)
	if !strings.Contains(err.Error(), r.key(1).String()) {
		t.Fatalf("the error does not name the block: %v", err)
	}
}

func TestDefect08EmptyTasksComplete(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigOptions{})
	for _, layerwise := range []bool{false, true} {
		l, err := r.st.Load(r.ctx(), nil, r.pages, nil, store.LoadOptions{Layerwise: layerwise})
		r.must(err)
		for i := range 3 {
			r.must(l.WaitShard(r.ctx(), i))
		}
		r.must(l.Wait(r.ctx()))
		d, err := r.st.Dump(r.ctx(), r.pages, nil, store.DumpOptions{Layerwise: layerwise})
		r.must(err)
		r.must(d.SourceFree(r.ctx()))
		r.must(d.Durable(r.ctx()))
	}
	p, err := r.st.Prefetch(r.ctx(), nil)
	r.must(err)
	r.must(p.Wait(r.ctx()))
	lease, err := r.st.LeasePrefix(r.ctx(), nil, 0)
	r.must(err)
	if lease.Len() != 0 {
		t.Fatal("an empty lease has blocks")
	}
	lease.Release()
	hits, err := r.st.Lookup(r.ctx(), nil)
	if err != nil || len(hits) != 0 {
		t.Fatal(hits, err)
	}
}

func TestDefect09OtherIdentitiesDoNotMeet(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r := newRig(t, rigOptions{dirs: []string{dir}})
	r.dump(1)
	others := map[string]func(*block.Identity){
		"model":    func(id *block.Identity) { id.Model = "another" },
		"revision": func(id *block.Identity) { id.Revision = "2" },
		"dtype":    func(id *block.Identity) { id.DType = "bf16" },
		"layout":   func(id *block.Identity) { id.Layout = "mla" },
		"layers":   func(id *block.Identity) { id.LayerFirst, id.LayerEnd = 1, 4 },
		"heads":    func(id *block.Identity) { id.HeadFirst, id.HeadEnd = 1, 2 },
		"adapter":  func(id *block.Identity) { id.Adapter = "lora" },
		"salt":     func(id *block.Identity) { id.Salt = "tenant" },
	}
	for name, change := range others {
		id := r.id
		change(&id)
		key := id.Key([]byte{1, 0, 0, 0, 0, 0, 0, 0})
		if key == r.key(1) {
			t.Errorf("a block of another %s has the same key", name)
		}
		h, err := r.st.Lookup(r.ctx(), []block.Key{key})
		r.must(err)
		if h[0].State == tier.Ready {
			t.Errorf("a block of another %s is a hit", name)
		}
		_, err = file.Open(t.Context(), file.Config{Dirs: []string{dir}, Formats: block.Formats{{Layout: r.format.Layout, Identity: id.Digest()}}, Identities: []block.Identity{id}})
		wantErr(t, err, errdefs.ErrMismatch)
	}
}

func TestDefect09AddingADirectoryDoesNotRemapEveryKey(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigOptions{pages: 64, dirs: []string{t.TempDir()}})
	var ns []int
	for n := range 60 {
		ns = append(ns, n)
	}
	r.dump(ns...)
	r.closeStore()
	one := r.o.dirs
	r.o.dirs = append(slices.Clone(one), t.TempDir())
	r.openStore()
	// About half of the 60 keys now belong to the new directory. The rest stay where they are.
	stay := 0
	for i, h := range r.hits(ns...) {
		if h.State == tier.Ready {
			stay++
			r.mustLoad(ns[i])
		}
	}
	if stay < 5 {
		t.Fatalf("of %d blocks only %d are found after a directory was added", len(ns), stay)
	}
	// No block is lost: blocks whose directory changed can be stored again, and the old directory
	// keeps its files.
	r.dump(ns...)
	r.wantHits(true, ns...)
	r.closeStore()
	r.o.dirs = one
	r.openStore()
	r.wantHits(true, ns...)
}

func TestDefect10AbortedDumpKeepsItsPagesUntilTheHardwareStopped(t *testing.T) {
	t.Parallel()
	for _, layerwise := range []bool{false, true} {
		r := newRig(t, rigOptions{slots: 2})
		r.fill(0, 1)
		faults := r.plan.Injected()
		r.plan.Add(r.next(sim.OpWork, fault.Nth).Stall())
		d, err := r.st.Dump(r.ctx(), r.pages, r.refs(0, 1), store.DumpOptions{Layerwise: layerwise})
		r.must(err)
		if layerwise {
			r.must(d.SubmitShard(r.ctx(), 0))
		}
		r.must(r.plan.Await(r.ctx(), faults+1))
		d.Cancel()
		ctx, cancel := context.WithTimeout(r.ctx(), 20*time.Millisecond)
		wantErr(t, d.SourceFree(ctx), context.DeadlineExceeded)
		cancel()
		// The device may still write to one slot, so that slot is in quarantine. The other slot is
		// free.
		r.eventually(func() bool { return r.st.Stats().Quarantined > 0 })
		if n := r.st.Stats().Quarantined; n != 1 {
			t.Fatalf("%d slots were quarantined, want 1", n)
		}
		first, err := r.cache.Reserve(r.ctx(), r.key(50))
		r.must(err)
		ended, end := context.WithCancel(r.ctx())
		end()
		if _, err := r.cache.Reserve(ended, r.key(51)); !errors.Is(err, errdefs.ErrBusy) && !errors.Is(err, context.Canceled) {
			t.Fatalf("the quarantined slot was given away: %v", err)
		}
		first.Abort(errdefs.ErrCanceled)
		r.plan.Release()
		r.must(d.SourceFree(r.ctx()))
		wantErr(t, d.Durable(r.ctx()), errdefs.ErrCanceled)
		r.eventually(func() bool { return r.cache.Stats().Quarantined == 0 })
		r.dump(2, 3)
		r.wantHits(true, 2, 3)
	}
}
