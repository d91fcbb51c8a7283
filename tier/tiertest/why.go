package tiertest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/tier"
)

// testExplain checks that explanations agree with lookups.
func testExplain(s *suite) {
	tr := s.open(4)
	s.put(tr, Key(0))
	got, err := tier.Explain(s.Context(), tr, []block.Key{Key(0), Key(1), Key(0)})
	if err != nil {
		s.Fatal(err)
	}
	for i, want := range []tier.State{tier.Ready, tier.Absent, tier.Ready} {
		if e := got[i]; e.State != want || e.Error != "" || e.Removed != nil {
			s.Errorf("block %d: %+v", i, e)
		}
	}
	if e, ok := tr.(tier.Explainer); ok {
		s.wantIs("explain two keys with space for one", e.Explain(s.Context(), []block.Key{Key(0), Key(1)}, make([]tier.Explanation, 1)), errdefs.ErrInvalid)
	}
}

// WhyConfig describes a tier in one directory for RunWhy.
type WhyConfig struct {
	Format block.Format
	// Keys is the number of blocks, about twice those that the bound of the tier holds.
	Keys int
	// Open opens the tier in its directory.
	Open func(t *testing.T) WhyTier
	// Offline explains blocks of the directory without the tier.
	Offline func(ctx context.Context, keys []block.Key) ([]tier.Explanation, error)
	// Collect collects a directory without a tier, down to bytes.
	Collect func(ctx context.Context, bytes int64) error
	// Remove removes blocks of the directory without a tier: those in keys, or if that is nil all
	// blocks that are older than a day.
	Remove func(ctx context.Context, keys []block.Key) error
	// Age makes some blocks of the directory, or all of them, older than a day.
	Age func(t *testing.T, keys []block.Key)
	// Corrupt damages a stored block.
	Corrupt func(t *testing.T, key block.Key)
}

// WhyTier is a tier that removes blocks.
type WhyTier interface {
	tier.Tier
	tier.Explainer
	GC(ctx context.Context, targetBytes int64) (removed int, err error)
}

// RunWhy stores and removes blocks at random, by each cause, and checks after each step that every
// block has the right explanation, with the tier and without. It must run in a synctest bubble.
func RunWhy(t *testing.T, c WhyConfig, remove func(tr WhyTier, keys []block.Key) error, seed uint64) {
	t.Helper()
	m := &whyModel{T: t, c: c, remove: remove, rng: rand.New(rand.NewPCG(seed, 0x776879)), blocks: make([]whyBlock, c.Keys), seen: make(map[tier.Cause]int)}
	m.dst = Buffer(t, c.Format.Layout.ImageBytes()).Bytes()
	m.open()
	for range 150 {
		time.Sleep(time.Second) // so that times differ
		m.step()
		if t.Failed() {
			t.Logf("seed %d:\n%s", seed, strings.Join(m.history, "\n"))
			break
		}
	}
	m.close()
	for _, cause := range []tier.Cause{tier.CauseBound, tier.CauseGC, tier.CauseAge, tier.CauseRequest, tier.CauseDamage, tier.CauseProgram} {
		if m.seen[cause] == 0 && !t.Failed() {
			t.Errorf("no block was removed by %s: the test does not test", cause)
		}
	}
}

type whyModel struct {
	*testing.T
	c       WhyConfig
	remove  func(tr WhyTier, keys []block.Key) error
	rng     *rand.Rand
	tr      WhyTier
	dst     []byte
	blocks  []whyBlock
	seen    map[tier.Cause]int
	history []string
}

// whyBlock is the expected state of a block. removed is zero if it was never removed.
type whyBlock struct {
	stored  bool
	cause   tier.Cause
	removed time.Time // of the step in which it was removed
}

func (m *whyModel) open() { m.tr = m.c.Open(m.T) }

func (m *whyModel) close() {
	if err := m.tr.Close(context.WithoutCancel(m.Context())); err != nil {
		m.Fatal(err)
	}
}

// some returns a few keys.
func (m *whyModel) some() (keys []block.Key) {
	for range 1 + m.rng.IntN(4) {
		keys = append(keys, Key(m.rng.IntN(m.c.Keys)))
	}
	return keys
}

// step performs an operation. Blocks that it removes must be explained by its cause.
func (m *whyModel) step() {
	m.Helper()
	ctx, keys, start := m.Context(), m.some(), time.Now()
	if stored := m.stored(m.all()); len(stored) > 0 {
		keys[0] = stored[m.rng.IntN(len(stored))]
	}
	key := keys[0]
	var targets []block.Key // nil: any
	must := func(err error) {
		if err != nil && !errors.Is(err, errdefs.ErrNotFound) {
			m.Errorf("%v", err)
		}
	}
	offline := func(f func() error) {
		m.close()
		must(f())
		m.open()
	}
	size := m.c.Format.Layout.ImageBytes() * int64(m.rng.IntN(m.c.Keys/2))
	cause, name := tier.CauseBound, "put"
	switch n := m.rng.IntN(20); {
	case n < 9:
		m.putMany(8)
	case n == 9:
		cause, name, targets = tier.CauseProgram, "delete", keys[:1]
		must(m.tr.Delete(ctx, key))
	case n == 10:
		cause, name, targets = tier.CauseRequest, "remove", keys
		must(m.remove(m.tr, keys))
	case n == 11:
		cause, name, targets = tier.CauseRequest, "remove offline", keys
		offline(func() error { return m.c.Remove(ctx, keys) })
	case n == 12:
		cause, name = tier.CauseAge, "remove by age"
		keys = m.stored(keys)
		offline(func() error { m.c.Age(m.T, keys); return m.c.Remove(ctx, nil) })
	case n == 13:
		cause, name = tier.CauseGC, "gc"
		_, err := m.tr.GC(ctx, size)
		must(err)
	case n == 14:
		cause, name = tier.CauseGC, "gc offline"
		offline(func() error { return m.c.Collect(ctx, size) })
	case n == 15:
		name = "reopen"
		offline(func() error { return nil })
	default:
		cause, name, targets = tier.CauseDamage, "damage", keys[:1]
		for _, key := range m.stored(keys[:1]) {
			m.c.Corrupt(m.T, key)
			offline(func() error { return nil }) // forgets that the block was verified
			if err := m.tr.Get(ctx, key, Buffer(m.T, int64(len(m.dst)))); !errors.Is(err, errdefs.ErrCorrupt) {
				m.Errorf("get a damaged block: %v", err)
			}
		}
	}
	m.history = append(m.history, fmt.Sprintf("%s: %s, %d bytes, first key %s", start.Format(time.TimeOnly), name, size, key))
	time.Sleep(time.Minute) // the tier's background work ends
	synctest.Wait()
	m.observe(cause, targets, start)
	m.check()
}

// putMany stores n blocks.
func (m *whyModel) putMany(n int) {
	src := Buffer(m.T, m.c.Format.Layout.ImageBytes())
	for range n {
		key := Key(m.rng.IntN(m.c.Keys))
		Seal(m.T, m.c.Format, src.Bytes(), key, 0)
		if err := m.tr.Put(m.Context(), key, src); err != nil {
			m.Errorf("put: %v", err)
		}
	}
}

// stored returns those of keys that are stored.
func (m *whyModel) stored(keys []block.Key) (out []block.Key) {
	states := m.states(keys)
	for i, key := range keys {
		if states[i] == tier.Ready {
			out = append(out, key)
		}
	}
	return out
}

func (m *whyModel) states(keys []block.Key) []tier.State {
	states := make([]tier.State, len(keys))
	if err := m.tr.Lookup(m.Context(), keys, states); err != nil {
		m.Error(err)
	}
	return states
}

func (m *whyModel) all() (keys []block.Key) {
	for i := range m.blocks {
		keys = append(keys, Key(i))
	}
	return keys
}

// observe records which blocks the step has stored and removed. Blocks that are no targets of the
// step are removed by the bound, for which a log evicts blocks when it writes a deletion.
func (m *whyModel) observe(cause tier.Cause, targets []block.Key, start time.Time) {
	for i, s := range m.states(m.all()) {
		b := &m.blocks[i]
		if b.stored && s != tier.Ready {
			b.cause, b.removed = cause, start
			if targets != nil && !slices.Contains(targets, Key(i)) {
				b.cause = tier.CauseBound
			}
			m.seen[b.cause]++
		}
		b.stored = s == tier.Ready
	}
}

// check compares the explanations of all blocks.
func (m *whyModel) check() {
	m.Helper()
	keys := m.all()
	// Other processes see the removals without help of the tier.
	offline, err := m.c.Offline(m.Context(), keys)
	if err != nil {
		m.Fatal(err)
	}
	online := make([]tier.Explanation, len(keys))
	if err := m.tr.Explain(m.Context(), keys, online); err != nil {
		m.Fatal(err)
	}
	for i := range m.blocks {
		b := &m.blocks[i]
		for at, e := range []tier.Explanation{online[i], offline[i]} {
			if why := b.wrong(&e); why != "" {
				m.Errorf("block %d, explanation %d: %s: %+v, removed: %+v; expected %+v", i, at, why, e, e.Removed, *b)
			}
			if !b.stored && b.removed.IsZero() && e.Removed != nil && e.Removed.Cause == tier.CauseBound {
				b.cause, b.removed = tier.CauseBound, e.Removed.Time // a put removed its own block
			}
		}
	}
}

// wrong returns the reason why an explanation is wrong, or "".
func (b *whyBlock) wrong(e *tier.Explanation) string {
	switch r := e.Removed; {
	case b.stored != (e.State == tier.Ready):
		return "its state"
	case b.stored:
		if e.Stored.IsZero() || r != nil {
			return "its times"
		}
	case r == nil && !b.removed.IsZero():
		return "no removal is recorded"
	case r != nil && r.Cause != b.cause && (r.Cause != tier.CauseBound || r.Time.Before(b.removed.Add(time.Second))):
		return "the cause"
	case r != nil && r.Time.Before(b.removed):
		return "the time"
	case r != nil && (r.PID == 0 || r.Process == ""):
		return "the process"
	case r != nil && e.Recorded.IsZero():
		return "the start of the log"
	}
	return ""
}
