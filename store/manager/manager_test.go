package manager_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/store/manager"
	"github.com/kvlane/kvlane/tier"
	"github.com/kvlane/kvlane/tier/cache"
)

func TestMain(m *testing.M) { testkit.Main(m) }

func formats(t *testing.T, rank, ranks, groups int) block.Formats {
	t.Helper()
	var fs block.Formats
	for g := range groups {
		geometry := block.Geometry{
			Model: fmt.Sprintf("model of group %d", g), DType: "float16", Layers: 2, KVHeads: 6, HeadSize: 8, BlockTokens: 16, TPSize: ranks, TPRank: rank,
		}
		layout, err := geometry.Layout()
		if err != nil {
			t.Fatal(err)
		}
		fs = append(fs, block.Format{Layout: layout, Identity: geometry.Identity("", "").Digest()})
	}
	return fs
}

func pool(blocks int, fs block.Formats) func(func(block.Key)) (manager.Pool, error) {
	return func(evicted func(block.Key)) (manager.Pool, error) {
		return cache.Open(cache.Config{Blocks: blocks, Formats: fs, Evicted: evicted})
	}
}

// open returns a Manager with the given numbers of ranks and page groups, and the file tiers of the
// ranks.
func open(t *testing.T, blocks, ranks, groups int) (*manager.Manager, []*files) {
	t.Helper()
	return openConfig(t, manager.Config{}, blocks, ranks, groups)
}

func openConfig(t *testing.T, c manager.Config, blocks, ranks, groups int) (*manager.Manager, []*files) {
	t.Helper()
	var below []*files
	for r := range ranks {
		below = append(below, &files{there: map[block.Key]bool{}})
		c.Ranks = append(c.Ranks, manager.Rank{Formats: formats(t, r, ranks, groups), Below: []tier.Tier{below[r]}})
	}
	c.OpenPool = pool(blocks, c.Ranks[0].Formats)
	m, err := manager.Open(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	return m, below
}

func named(hashes ...string) []manager.Block {
	var out []manager.Block
	for _, h := range hashes {
		out = append(out, manager.Block{Hash: h})
	}
	return out
}

func hashes(blocks []manager.Block) []string {
	var out []string
	for _, b := range blocks {
		out = append(out, b.Hash)
	}
	return out
}

func states(t *testing.T, m *manager.Manager, hashes ...string) []manager.State {
	t.Helper()
	s, err := m.Lookup(t.Context(), named(hashes...))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func end(t *testing.T, j *manager.Job, failed ...int) {
	t.Helper()
	if err := j.End(failed...); err != nil {
		t.Fatal(err)
	}
}

func stored(t *testing.T, m *manager.Manager, hashes ...string) *manager.Job {
	t.Helper()
	j, err := m.Store(named(hashes...))
	if err != nil {
		t.Fatal(err)
	}
	return j
}

func loaded(t *testing.T, m *manager.Manager, hashes ...string) *manager.Job {
	t.Helper()
	j, err := m.Load(t.Context(), named(hashes...))
	if err != nil {
		t.Fatal(err)
	}
	return j
}

func TestStoredBlocksAreThere(t *testing.T) {
	m, _ := open(t, 4, 1, 1)
	j := stored(t, m, "a", "b", "a")
	if got := hashes(j.Blocks); !slices.Equal(got, []string{"a", "b"}) || len(j.Evicted) != 0 {
		t.Errorf("stores %v, evicts %v", got, j.Evicted)
	}
	if got := states(t, m, "a", "b", "c"); !slices.Equal(got, []manager.State{manager.UnderWay, manager.UnderWay, manager.Absent}) {
		t.Errorf("states while the blocks are stored: %v", got)
	}
	if _, err := m.Load(t.Context(), named("a")); !errors.Is(err, errdefs.ErrBusy) {
		t.Errorf("load of a block that is being stored: %v", err)
	}
	if again := stored(t, m, "b", "a"); len(again.Blocks) != 0 {
		t.Errorf("stores %v, which another job does", again.Blocks)
	} else {
		end(t, again)
	}
	end(t, j, 1)
	if got := states(t, m, "a", "b"); !slices.Equal(got, []manager.State{manager.InPool, manager.Absent}) {
		t.Errorf("b has failed: %v", got)
	}
	// A worker may have stored b before the job failed.
	next := stored(t, m, "b")
	if got := hashes(next.Evicted); !slices.Equal(got, []string{"b"}) || !slices.Equal(hashes(next.Blocks), []string{"b"}) {
		t.Errorf("stores %v, evicts %v", next.Blocks, got)
	}
	end(t, next)
	if s := m.Stats(); s.Blocks != 2 || s.Stored != 3 || s.Forgotten != 1 || s.Jobs != 0 {
		t.Errorf("%+v", s)
	}
}

func TestSpaceIsMadeFromBlocksOfNoJob(t *testing.T) {
	m, _ := open(t, 2, 1, 1)
	end(t, stored(t, m, "a", "b"))
	load := loaded(t, m, "a")
	if _, err := m.Store(named("c", "d")); !errors.Is(err, errdefs.ErrBusy) {
		t.Errorf("room for two where one is in use: %v", err)
	}
	j := stored(t, m, "d")
	if got := hashes(j.Evicted); !slices.Equal(got, []string{"b"}) {
		t.Errorf("evicts %v", got)
	}
	end(t, j)
	end(t, load)
	if got := states(t, m, "a", "b", "c", "d"); !slices.Equal(got, []manager.State{manager.InPool, manager.Absent, manager.Absent, manager.InPool}) {
		t.Errorf("%v", got)
	}
	if s := m.Stats(); s.Evicted != 1 || s.Refused != 2 || s.FromPool != 1 {
		t.Errorf("%+v", s)
	}
}

// A block that is in the files of every rank is found, and a load brings it to the pools. It is a
// miss if one rank does not have it.
func TestFilesOfAllRanks(t *testing.T) {
	m, below := open(t, 2, 2, 1)
	has := func(rank int, hash string) { below[rank].there[formats(t, rank, 2, 1).Key(0, []byte(hash))] = true }
	has(0, "a")
	has(1, "a")
	has(0, "b")
	if got := states(t, m, "a", "b"); !slices.Equal(got, []manager.State{manager.InFiles, manager.Absent}) {
		t.Fatalf("%v", got)
	}
	if _, err := m.Load(t.Context(), named("a", "b")); !errors.Is(err, errdefs.ErrNotFound) {
		t.Errorf("load of a block that one rank lacks: %v", err)
	}
	j := loaded(t, m, "a")
	if got := states(t, m, "a"); got[0] != manager.UnderWay {
		t.Errorf("states while the blocks are loaded from files: %v", got)
	}
	end(t, j)
	clear(below[0].there)
	end(t, loaded(t, m, "a"))
	if s := m.Stats(); s.FromFiles != 1 || s.FromPool != 1 || s.Blocks != 1 {
		t.Errorf("%+v", s)
	}
	below[1].err = errdefs.ErrBroken
	got, err := m.Lookup(t.Context(), named("a", "b"))
	if !errors.Is(err, errdefs.ErrBroken) || !slices.Equal(got, []manager.State{manager.InPool, manager.Absent}) {
		t.Errorf("%v, %v", got, err)
	}
}

func TestForgottenBlockIsStoredAnew(t *testing.T) {
	m, _ := open(t, 4, 1, 1)
	end(t, stored(t, m, "a", "b"))
	first, second := loaded(t, m, "a", "b"), loaded(t, m, "a")
	if err := m.Forget(named("a", "x")); err != nil {
		t.Fatal(err)
	}
	if got := states(t, m, "a", "b"); !slices.Equal(got, []manager.State{manager.Absent, manager.InPool}) {
		t.Fatalf("%v", got)
	}
	anew := stored(t, m, "a")
	if got := hashes(anew.Evicted); !slices.Equal(got, []string{"a"}) {
		t.Errorf("evicts %v", got)
	}
	end(t, anew)
	end(t, first, 0) // reports the earlier block again
	end(t, second, 0)
	if got := states(t, m, "a", "b"); !slices.Equal(got, []manager.State{manager.InPool, manager.InPool}) {
		t.Errorf("%v", got)
	}
	if n := m.Reset(); n != 2 {
		t.Errorf("%d blocks reset", n)
	}
	j := stored(t, m, "c")
	if got := hashes(j.Evicted); len(got) != 2 {
		t.Errorf("evicts %v", got)
	}
	end(t, j)
}

func TestWrongArguments(t *testing.T) {
	some := pool(1, formats(t, 0, 1, 1))
	for _, c := range []manager.Config{
		{},
		{OpenPool: some},
		{Ranks: []manager.Rank{{Formats: formats(t, 0, 1, 1)}}},
		{OpenPool: pool(0, formats(t, 0, 1, 1)), Ranks: []manager.Rank{{Formats: formats(t, 0, 1, 1)}}},
		{OpenPool: some, Ranks: []manager.Rank{{Formats: formats(t, 0, 2, 1)}, {Formats: formats(t, 1, 2, 2)}}},
		{OpenPool: some, Ranks: []manager.Rank{{Formats: formats(t, 0, 2, 1)}, {Formats: formats(t, 1, 2, 1), Below: []tier.Tier{&files{}}}}},
	} {
		if _, err := manager.Open(c); !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("%+v: %v", c, err)
		}
	}
	m, _ := open(t, 2, 1, 2)
	wrong := []manager.Block{{Group: 2, Hash: "a"}}
	if _, err := m.Lookup(t.Context(), wrong); !errors.Is(err, errdefs.ErrInvalid) {
		t.Error(err)
	}
	if _, err := m.Load(t.Context(), wrong); !errors.Is(err, errdefs.ErrInvalid) {
		t.Error(err)
	}
	if _, err := m.Store(wrong); !errors.Is(err, errdefs.ErrInvalid) {
		t.Error(err)
	}
	if err := errors.Join(m.Touch(wrong), m.Forget(wrong)); !errors.Is(err, errdefs.ErrInvalid) {
		t.Error(err)
	}
	j := stored(t, m, "a")
	if err := j.End(1); !errors.Is(err, errdefs.ErrInvalid) {
		t.Error(err)
	}
	end(t, j)
	end(t, j)
}

func TestCloseCountsJobs(t *testing.T) {
	fs := formats(t, 0, 1, 1)
	m, err := manager.Open(manager.Config{OpenPool: pool(2, fs), Ranks: []manager.Rank{{Formats: fs}}})
	if err != nil {
		t.Fatal(err)
	}
	j := stored(t, m, "a")
	if err := m.Close(); !errors.Is(err, errdefs.ErrBusy) {
		t.Errorf("close with a job: %v", err)
	}
	end(t, j)
	if err := m.Close(); err != nil {
		t.Error(err)
	}
	if _, err := m.Store(named("b")); !errors.Is(err, errdefs.ErrClosed) {
		t.Error(err)
	}
}

// worker is the pool of a worker that executes jobs.
type worker struct {
	pool      map[manager.Block]bool
	unindexed map[manager.Block]bool // blocks of the pool in slots that the Manager does not count
	files     *files
	keys      block.Formats
	most      int
}

func (w *worker) drop(blocks []manager.Block) {
	for _, b := range blocks {
		delete(w.pool, b)
		delete(w.unindexed, b)
	}
}

func (w *worker) take(b manager.Block) {
	w.pool[b] = true
	delete(w.unindexed, b)
	w.most = max(w.most, len(w.pool)-len(w.unindexed))
}

// TestModel runs workers that execute the manager's jobs in its order. Blocks are lost, and jobs
// end in any order, directly or not. The index must always agree with the workers' pools, and no
// pool may exceed its capacity.
func TestModel(t *testing.T) {
	const capacity, universe = 12, 40
	for seed := range uint64(30) {
		rng := rand.New(rand.NewPCG(seed, 1))
		ranks := 1 + rng.IntN(3)
		m, below := openConfig(t, manager.Config{Direct: seed%2 == 1}, capacity, ranks, 2)
		var workers []*worker
		for r := range ranks {
			workers = append(workers, &worker{pool: map[manager.Block]bool{}, unindexed: map[manager.Block]bool{}, files: below[r], keys: formats(t, r, ranks, 2)})
		}
		type pending struct {
			job    *manager.Job
			failed []int
			pooled []int // for a direct job: blocks in the pool of a worker
		}
		finish := func(p pending) {
			if err := p.job.FellBack(p.pooled...); err != nil {
				t.Fatal(err)
			}
			end(t, p.job, p.failed...)
		}
		var jobs []pending
		some := func() []manager.Block {
			from, n := rng.IntN(universe), 1+rng.IntN(4)
			var out []manager.Block
			for k := range n {
				out = append(out, manager.Block{Group: (from + k) % 2, Hash: fmt.Sprint((from + k) % universe)})
			}
			return out
		}
		perform := func(j *manager.Job, load bool) {
			p := pending{job: j}
			for _, w := range workers {
				w.drop(j.Evicted)
				for i, b := range j.Blocks {
					inFiles := w.files.there[w.keys.Key(b.Group, []byte(b.Hash))]
					switch {
					case load && !w.pool[b] && !inFiles:
						p.failed = append(p.failed, i)
					case rng.IntN(20) == 0:
						p.failed = append(p.failed, i)
					case j.Direct && !w.pool[b] && rng.IntN(3) > 0: // read directly
						continue
					case j.Direct && !w.pool[b]:
						w.pool[b], w.unindexed[b] = true, true
						p.pooled = append(p.pooled, i)
					default:
						w.take(b)
					}
				}
			}
			jobs = append(jobs, p)
		}
		for range 400 {
			switch rng.IntN(8) {
			case 0, 1, 2:
				if j, err := m.Store(some()); err == nil {
					perform(j, false)
				} else if !errors.Is(err, errdefs.ErrBusy) {
					t.Fatal(err)
				}
			case 3, 4:
				j, err := m.Load(t.Context(), some())
				if err == nil {
					perform(j, true)
				} else if !errors.Is(err, errdefs.ErrBusy) && !errors.Is(err, errdefs.ErrNotFound) {
					t.Fatal(err)
				}
			case 5: // a worker writes its blocks to files
				w := workers[rng.IntN(ranks)]
				for b := range w.pool {
					w.files.there[w.keys.Key(b.Group, []byte(b.Hash))] = true
				}
			case 6: // a worker loses a block, and reports it
				if bs := some(); rng.IntN(4) == 0 {
					for _, w := range workers {
						w.drop(bs[:1])
						delete(w.files.there, w.keys.Key(bs[0].Group, []byte(bs[0].Hash)))
					}
					for i := range jobs { // a running job reports it
						if at := slices.Index(jobs[i].job.Blocks, bs[0]); at >= 0 {
							jobs[i].failed = append(jobs[i].failed, at)
						}
					}
					if err := m.Forget(bs[:1]); err != nil {
						t.Fatal(err)
					}
				} else if err := m.Touch(bs); err != nil {
					t.Fatal(err)
				}
			}
			for len(jobs) > 0 && rng.IntN(3) > 0 {
				i := rng.IntN(len(jobs))
				finish(jobs[i])
				jobs = slices.Delete(jobs, i, i+1)
			}
		}
		for _, p := range jobs {
			finish(p)
		}
		// The next job contains all evicted blocks.
		last := stored(t, m)
		end(t, last)
		for _, w := range workers {
			w.drop(last.Evicted)
			clear(w.files.there)
		}
		there := int64(0)
		for k := range universe {
			b := manager.Block{Group: k % 2, Hash: fmt.Sprint(k)}
			s, err := m.Lookup(t.Context(), []manager.Block{b})
			if err != nil {
				t.Fatal(err)
			}
			if s[0] == manager.InPool {
				there++
			}
			for r, w := range workers {
				if in := s[0] == manager.InPool; in != w.pool[b] {
					t.Errorf("seed %d: block %v is in the index: %t, and in the pool of rank %d: %t", seed, b, in, r, !in)
				}
			}
		}
		if s := m.Stats(); seed%2 == 1 && (s.Direct == 0 || s.FellBack == 0 || s.Direct == s.FromFiles) {
			t.Errorf("seed %d: %+v", seed, s)
		}
		if s := m.Stats(); s.Blocks != there || s.Jobs != 0 || s.Blocks > capacity {
			t.Errorf("seed %d: %d are there, and %+v", seed, there, s)
		}
		for r, w := range workers {
			if w.most > capacity {
				t.Errorf("seed %d: rank %d held %d blocks at a time, and has room for %d", seed, r, w.most, capacity)
			}
		}
	}
}

func TestManyThreads(t *testing.T) {
	m, _ := open(t, 8, 1, 1)
	var group sync.WaitGroup
	for g := range 8 {
		group.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(g), 2))
			for range 300 {
				bs := named(fmt.Sprint(rng.IntN(20)), fmt.Sprint(rng.IntN(20)))
				var j *manager.Job
				var err error
				if rng.IntN(2) == 0 {
					j, err = m.Store(bs)
				} else {
					j, err = m.Load(context.Background(), bs)
				}
				if err == nil {
					err = j.End(rng.Perm(len(j.Blocks))[:rng.IntN(1+len(j.Blocks))]...)
				}
				if err != nil && !errors.Is(err, errdefs.ErrBusy) && !errors.Is(err, errdefs.ErrNotFound) {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
	if s := m.Stats(); s.Jobs != 0 || s.Blocks > 8 {
		t.Errorf("%+v", s)
	}
}
