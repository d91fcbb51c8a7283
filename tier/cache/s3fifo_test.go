package cache_test

import (
	"container/list"
	"math/rand/v2"
	"testing"

	"github.com/kvlane/kvlane/tier/cache"
	"github.com/kvlane/kvlane/tier/tiertest"
)

// replacer is a cache of keys alone: access says whether key was there, and takes it in.
type replacer interface{ access(key int) bool }

// s3 runs the tier's policy without the tier.
type s3 struct {
	p     cache.Policy
	slots map[int]uint32
	keys  []int
	used  int
}

func newS3(n int) *s3 {
	return &s3{p: cache.NewPolicy(n, func(uint32) bool { return false }), slots: map[int]uint32{}, keys: make([]int, n)}
}

func (c *s3) access(key int) bool {
	if slot, ok := c.slots[key]; ok {
		c.p.Use(slot)
		return true
	}
	slot := uint32(c.used)
	if c.used < len(c.keys) {
		c.used++
	} else {
		slot, _ = c.p.Victim()
		delete(c.slots, c.keys[slot])
	}
	c.keys[slot], c.slots[key] = key, slot
	c.p.Admit(slot, tiertest.Key(key))
	c.p.Link(slot)
	return false
}

// recency is an LRU cache, or a FIFO.
type recency struct {
	n     int
	fifo  bool
	order *list.List
	at    map[int]*list.Element
}

func newRecency(n int, fifo bool) *recency {
	return &recency{n: n, fifo: fifo, order: list.New(), at: map[int]*list.Element{}}
}

func (c *recency) access(key int) bool {
	if e, ok := c.at[key]; ok {
		if !c.fifo {
			c.order.MoveToFront(e)
		}
		return true
	}
	if c.order.Len() == c.n {
		if oldest, ok := c.order.Remove(c.order.Back()).(int); ok {
			delete(c.at, oldest)
		}
	}
	c.at[key] = c.order.PushFront(key)
	return false
}

// scan uses a hot set of 60% of the capacity for a while, scans ten times the capacity once, and counts how much of the
// hot set is still there.
func scan(c replacer, capacity int) (kept, hot int) {
	hot = capacity * 6 / 10
	for range 5 {
		for k := range hot {
			c.access(k)
		}
	}
	for k := range 10 * capacity {
		c.access(1000 + k)
	}
	for k := range hot {
		if c.access(k) {
			kept++
		}
	}
	return kept, hot
}

func TestScanResistance(t *testing.T) {
	for _, capacity := range []int{20, 100, 1000} {
		if kept, _ := scan(newRecency(capacity, false), capacity); kept != 0 {
			t.Errorf("capacity %d: LRU kept %d; this scan proves nothing", capacity, kept)
		}
		if kept, _ := scan(newRecency(capacity, true), capacity); kept != 0 {
			t.Errorf("capacity %d: FIFO kept %d; this scan proves nothing", capacity, kept)
		}
		if kept, hot := scan(newS3(capacity), capacity); kept != hot {
			t.Errorf("capacity %d: %d of %d hot blocks outlived the scan", capacity, kept, hot)
		}
	}
}

// The same through the tier: blocks put, retained as a lookup does, and a scan that puts blocks used once.
func TestScanDoesNotEvictHotBlocks(t *testing.T) {
	const capacity, hot = 20, 12
	f := tiertest.NewFormat(t)
	c := open(t, f, capacity)
	defer closeTier(t, c)
	src := tiertest.Buffer(t, f.Layout.ImageBytes())
	put := func(i int) {
		t.Helper()
		tiertest.Seal(t, f, src.Bytes(), tiertest.Key(i), 0)
		if err := c.Put(t.Context(), tiertest.Key(i), src); err != nil {
			t.Fatal(err)
		}
	}
	hits := func() (n int) {
		t.Helper()
		for i := range hot {
			hit, err := c.Retain(t.Context(), tiertest.Keys(i))
			if err != nil {
				t.Fatal(err)
			}
			n += hit
			c.Release(tiertest.Keys(i)[:hit])
		}
		return n
	}
	for i := range hot {
		put(i)
	}
	hits()
	hits()
	for i := range 10 * capacity {
		put(1000 + i)
	}
	if n := hits(); n != hot {
		t.Errorf("%d of %d hot blocks outlived a scan of ten times the capacity", n, hot)
	}
}

// A block that comes back soon after it was evicted is not taken for one that is used once.
func TestGhostBringsBackToMain(t *testing.T) {
	const capacity = 50
	c := newS3(capacity)
	for k := range capacity {
		c.access(k) // the cache is full of blocks used once
	}
	for k := range 10 {
		c.access(100 + k)
	}
	if c.access(0) {
		t.Fatal("the first block was not evicted")
	}
	for k := range 2 * capacity {
		c.access(1000 + k)
	}
	if !c.access(0) {
		t.Error("a block that came back was evicted by blocks used once")
	}
}

// Pinned slots are never chosen, are walked over once only, and become candidates again when they are unpinned.
func TestPolicySkipsPinned(t *testing.T) {
	const n = 32
	pinned := map[uint32]bool{}
	asked := 0
	p := cache.NewPolicy(n, func(slot uint32) bool { asked++; return pinned[slot] })
	for slot := range uint32(n) {
		p.Admit(slot, tiertest.Key(int(slot)))
		p.Link(slot)
		pinned[slot] = slot%4 != 0
	}
	seen := map[uint32]bool{}
	for range n / 4 {
		slot, ok := p.Victim()
		if !ok || pinned[slot] || seen[slot] {
			t.Fatalf("victim %d, %v; pinned %v, seen %v", slot, ok, pinned[slot], seen[slot])
		}
		seen[slot] = true
	}
	for range 10 {
		if slot, ok := p.Victim(); ok {
			t.Fatalf("victim %d with all others pinned", slot)
		}
	}
	if asked > n {
		t.Errorf("%d slots were looked at, want at most %d", asked, n)
	}
	delete(pinned, 5)
	p.Link(5)
	p.Link(5) // once only
	if slot, ok := p.Victim(); !ok || slot != 5 {
		t.Errorf("victim %d, %v; want the slot that was unpinned", slot, ok)
	}
	if p.Candidates() != 0 {
		t.Errorf("%d candidates are left", p.Candidates())
	}
}

// The queues stay consistent whatever happens: every linked slot comes up exactly once when all are evicted.
func TestPolicyRandom(t *testing.T) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 1))
		n := 1 + rng.IntN(40)
		pins := make([]bool, n)
		held := make([]bool, n) // holds a block
		p := cache.NewPolicy(n, func(slot uint32) bool { return pins[slot] })
		for range 2000 {
			slot := uint32(rng.IntN(n))
			switch {
			case !held[slot]:
				p.Admit(slot, tiertest.Key(rng.IntN(3*n)))
				p.Link(slot)
				held[slot] = true
			case rng.IntN(3) == 0:
				p.Use(slot)
			case rng.IntN(3) == 0:
				if pins[slot] = !pins[slot]; !pins[slot] {
					p.Link(slot)
				}
			case rng.IntN(4) == 0 && !pins[slot]:
				p.Remove(slot)
				held[slot] = false
			default:
				if v, ok := p.Victim(); ok {
					if pins[v] || !held[v] {
						t.Fatalf("seed %d: victim %d: pinned %v, holds a block %v", seed, v, pins[v], held[v])
					}
					held[v] = false
				}
			}
		}
		want := 0
		for slot := range held {
			if held[slot] {
				pins[slot] = false
				p.Link(uint32(slot))
				want++
			}
		}
		for range want {
			v, ok := p.Victim()
			if !ok || !held[v] {
				t.Fatalf("seed %d: victim %d, %v; holds a block %v", seed, v, ok, held[v])
			}
			held[v] = false
		}
		if _, ok := p.Victim(); ok || p.Candidates() != 0 {
			t.Fatalf("seed %d: candidates are left", seed)
		}
	}
}
