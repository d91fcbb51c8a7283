package cache_test

import (
	"container/list"
	"testing"

	"github.com/kvlane/kvlane/tier/cache"
	"github.com/kvlane/kvlane/tier/tiertest"
)

// replacer is a cache of keys. access reports whether it contains key, and adds it.
type replacer interface{ access(key int) bool }

// s3 runs the tier's policy without a tier.
type s3 struct {
	p     cache.Policy
	slots map[int]uint32
	keys  []int
	used  int
}

func newS3(n int) *s3 {
	return &s3{p: cache.NewPolicy(n), slots: map[int]uint32{}, keys: make([]int, n)}
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
	c.p.Release(slot)
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

// scan repeatedly uses a hot set of 60% of the capacity, and then scans ten times the capacity
// once. It returns how much of the hot set is left, and its size.
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

// The same test with a tier. Blocks are put and retained, as by lookups, and the scan puts blocks
// that are used once.
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

// A block that returns soon after its eviction is not treated as used once.
func TestGhostBringsBackToMain(t *testing.T) {
	const capacity = 50
	c := newS3(capacity)
	for k := range capacity {
		c.access(k) // fills the cache with blocks used once
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
		t.Error("a block that returned was evicted by blocks used once")
	}
}
