package acceptance_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvlane/kvlane"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/store/manager"
)

// worker executes the manager's jobs with its own engine.
type worker struct {
	e     *kvlane.Engine
	cache *kvlane.Cache
	dev   *mirror
}

func newWorker(t *testing.T, c kvlane.Config) *worker {
	t.Helper()
	w := &worker{e: openEngine(t, c)}
	w.dev = newMirror(t, w.e, int64(c.Model.Layers*c.Model.PlanesPerLayer())*cachePages*c.Model.PlaneBytes())
	cache, err := w.e.RegisterCache(cacheMemory(c, w.dev.kv.Dev(), false))
	if err != nil {
		t.Fatal(err)
	}
	w.cache = cache
	t.Cleanup(func() {
		if err := cache.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return w
}

func (w *worker) keys(blocks []kvlane.Block) []kvlane.Key {
	var keys []kvlane.Key
	for _, b := range blocks {
		keys = append(keys, w.e.Key([]byte(b.Hash)))
	}
	return keys
}

func (w *worker) refs(blocks []kvlane.Block) []kvlane.Ref {
	var refs []kvlane.Ref
	for i, k := range w.keys(blocks) {
		refs = append(refs, kvlane.Ref{Key: k, Page: uint32(i)})
	}
	return refs
}

// prepare records the anchors of a job's blocks and drops the evicted blocks.
func (w *worker) prepare(t *testing.T, j *kvlane.Job) {
	t.Helper()
	if j.Anchors != nil {
		if err := w.e.SetAnchors(w.keys(j.Blocks), j.Anchors); err != nil {
			t.Fatal(err)
		}
	}
	if stay, err := w.e.Drop(t.Context(), w.keys(j.Evicted)); err != nil || stay != 0 {
		t.Errorf("%d stay, %v", stay, err)
	}
}

func (w *worker) store(t *testing.T, j *kvlane.Job) {
	t.Helper()
	w.prepare(t, j)
	task, err := w.e.Dump(t.Context(), w.cache, w.refs(j.Blocks), kvlane.DumpOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := task.Durable(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// load executes a load job, and returns the indices of the blocks that failed.
func (w *worker) load(t *testing.T, j *kvlane.Job) (failed []int) {
	t.Helper()
	w.prepare(t, j)
	o := kvlane.LoadOptions{Promotion: kvlane.PromoteAll}
	if j.Direct {
		o.Promotion = kvlane.PromoteNone
	}
	task, err := w.e.Load(t.Context(), nil, w.cache, w.refs(j.Blocks), o)
	if err != nil {
		t.Fatal(err)
	}
	_ = task.Wait(t.Context())
	for i, err := range task.Errs() {
		if err != nil {
			failed = append(failed, i)
		}
	}
	return failed
}

func blocks(hashes ...string) []kvlane.Block {
	var out []kvlane.Block
	for _, h := range hashes {
		out = append(out, kvlane.Block{Hash: h})
	}
	return out
}

// TestManagerOfTwoRanks runs two workers, each with half of the heads, its own pool and its own
// files. One index covers both, through eviction, a restart and a damaged file of one worker.
func TestManagerOfTwoRanks(t *testing.T) {
	var ranks []kvlane.Config
	for r := range 2 {
		c := testConfig(t)
		c.Model.KVHeads, c.Model.TPSize, c.Model.TPRank = 2, 2, r
		c.Store.Dirs = []string{t.TempDir()}
		ranks = append(ranks, c)
	}
	names := blocks("a", "b", "c")
	open := func(t *testing.T, blocks int) (*kvlane.Manager, []*worker) {
		t.Helper()
		m, err := kvlane.OpenManager(t.Context(), kvlane.ManagerConfig{Ranks: ranks, Blocks: blocks})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := m.Close(context.Background()); err != nil {
				t.Error(err)
			}
		})
		return m, []*worker{newWorker(t, ranks[0]), newWorker(t, ranks[1])}
	}
	var pages [2][]byte
	t.Run("stored, and evicted from pools", func(t *testing.T) {
		m, workers := open(t, 3)
		j, err := m.Store(names)
		if err != nil {
			t.Fatal(err)
		}
		for i, w := range workers {
			pages[i] = w.dev.read(t)
			w.store(t, j)
		}
		if err := j.End(); err != nil {
			t.Fatal(err)
		}
		more, err := m.Store(blocks("d"))
		if err != nil || len(more.Evicted) != 1 {
			t.Fatalf("evicts %v: %v", more.Evicted, err)
		}
		for _, w := range workers {
			w.store(t, more)
			if hits, err := w.e.Lookup(t.Context(), w.keys(more.Evicted)); err != nil || hits[0].Tier != "file" {
				t.Errorf("evicted blocks are in %q, %v", hits[0].Tier, err)
			}
		}
		if err := more.End(); err != nil {
			t.Fatal(err)
		}
		states, err := m.Lookup(t.Context(), names)
		if err != nil || slices.Contains(states, manager.Absent) {
			t.Errorf("evicted blocks are in files: %v, %v", states, err)
		}
	})
	t.Run("found after a restart, and damaged", func(t *testing.T) {
		m, workers := open(t, 0)
		damage(t, ranks[1].Store.Dirs[0], workers[1].e.Key([]byte("b")))
		j, err := m.Load(t.Context(), names)
		if err != nil {
			t.Fatal(err)
		}
		if failed := workers[0].load(t, j); failed != nil {
			t.Errorf("rank 0 fails at %v", failed)
		}
		failed := workers[1].load(t, j)
		if !slices.Equal(failed, []int{1}) {
			t.Errorf("rank 1 fails at %v", failed)
		}
		n := ranks[0].Model.PlaneBytes()
		for i, w := range workers {
			got := w.dev.read(t)
			for plane := int64(0); plane < int64(len(got)); plane += cachePages * n {
				for page := range int64(3) {
					at := plane + page*n
					if same := string(got[at:at+n]) == string(pages[i][at:at+n]); !same && (i != 1 || page != 1) {
						t.Errorf("rank %d: page %d differs", i, page)
					}
				}
			}
		}
		if err := j.End(failed...); err != nil {
			t.Fatal(err)
		}
		states, err := m.Lookup(t.Context(), names)
		if err != nil || !slices.Equal(states, []manager.State{manager.InPool, manager.Absent, manager.InPool}) {
			t.Errorf("%v, %v", states, err)
		}
		if s := m.Stats(); s.FromFiles != 3 || s.Forgotten != 1 {
			t.Errorf("%+v", s)
		}
	})
}

// damage flips a bit in the middle of a block's file.
func damage(t *testing.T, dir string, key kvlane.Key) {
	t.Helper()
	found := false
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Base(path) != key.String() {
			return err
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		b[len(b)*3/4] ^= 4
		found = true
		return os.WriteFile(path, b, 0o600)
	})
	if err != nil || !found {
		t.Fatalf("no file of block %s: %v", key, err)
	}
}

func TestManagerRefuses(t *testing.T) {
	log := testConfig(t)
	log.Store.Dirs, log.Store.LogDir = nil, t.TempDir()
	window := testConfig(t)
	window.Store.Pipeline = "file"
	three := testConfig(t)
	three.Store.LogDir = t.TempDir()
	for name, want := range map[string]struct {
		ranks []kvlane.Config
		err   error
		text  string
	}{
		"no ranks":    {nil, errdefs.ErrInvalid, "rank"},
		"a log":       {[]kvlane.Config{log}, errdefs.ErrNotSupported, `pipeline "cache|log": a manager cannot use tier log`},
		"three tiers": {[]kvlane.Config{three}, errdefs.ErrNotSupported, `pipeline "cache|file|log": a manager cannot use tier log`},
		"no cache":    {[]kvlane.Config{window}, errdefs.ErrNotSupported, `a manager needs tier cache first, not file`},
		"no model":    {[]kvlane.Config{{}}, errdefs.ErrInvalid, "model"},
	} {
		_, err := kvlane.OpenManager(t.Context(), kvlane.ManagerConfig{Ranks: want.ranks})
		if !errors.Is(err, want.err) || !strings.Contains(err.Error(), want.text) {
			t.Errorf("%s: %v", name, err)
		}
	}
	large := testConfig(t)
	large.Store.CacheBytes *= 2
	for _, n := range []int{17, 1_000_000_000} {
		_, err := kvlane.OpenManager(t.Context(), kvlane.ManagerConfig{Ranks: []kvlane.Config{large, testConfig(t)}, Blocks: n})
		if !errors.Is(err, errdefs.ErrInvalid) || !strings.Contains(err.Error(), fmt.Sprintf("blocks is %d", n)) || !strings.Contains(err.Error(), "has 16 slots") {
			t.Errorf("%d blocks where the smallest cache has 16 slots: %v", n, err)
		}
	}
	m, err := kvlane.OpenManager(t.Context(), kvlane.ManagerConfig{Ranks: []kvlane.Config{testConfig(t)}})
	if err != nil {
		t.Fatal(err)
	}
	var all []kvlane.Block // one block for each slot of a worker; one block is not in the manager's index
	for n := range 16 {
		all = append(all, kvlane.Block{Hash: fmt.Sprint(n)})
	}
	if _, err := m.Store(all); !errors.Is(err, errdefs.ErrBusy) {
		t.Errorf("store of %d blocks: %v", len(all), err)
	}
	j, err := m.Store(all[1:])
	if err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := m.Close(short); !errors.Is(err, errdefs.ErrBusy) {
		t.Errorf("close with a job: %v", err)
	}
	if err := errors.Join(j.End(), m.Close(t.Context())); err != nil {
		t.Error(err)
	}
}
