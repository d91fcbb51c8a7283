package faulty_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/internal/sys/hostmem"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/tier"
	"github.com/kvlane/kvlane/tier/cache"
	"github.com/kvlane/kvlane/tier/faulty"
	"github.com/kvlane/kvlane/tier/file"
	"github.com/kvlane/kvlane/tier/tiertest"
)

func TestMain(m *testing.M) { testkit.Main(m) }

func openCache(tb testing.TB, f block.Format, n int) *cache.Tier {
	tb.Helper()
	b, err := hostmem.Alloc(int64(n) * f.Layout.ImageBytes())
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := hostmem.Free(b); err != nil {
			tb.Error(err)
		}
	})
	r, err := hostmem.Region(b)
	if err != nil {
		tb.Fatal(err)
	}
	c, err := cache.Open(cache.Config{Memory: r, Formats: block.Formats{f}})
	if err != nil {
		tb.Fatal(err)
	}
	return c
}

func openFile(tb testing.TB, f block.Format) *file.Tier {
	tb.Helper()
	t, err := file.Open(tb.Context(), file.Config{Dirs: []string{tb.TempDir()}, Formats: block.Formats{f}})
	if err != nil {
		tb.Fatal(err)
	}
	return t
}

func TestConformanceOfTier(t *testing.T) {
	f := tiertest.NewFormat(t)
	for name, open := range map[string]func(t *testing.T, capacity int) tier.Tier{
		"cache": func(t *testing.T, capacity int) tier.Tier { return openCache(t, f, capacity) },
		"file":  func(t *testing.T, _ int) tier.Tier { return openFile(t, f) },
	} {
		t.Run(name, func(t *testing.T) {
			tiertest.Run(t, tiertest.Config{
				Format:  f,
				Bounded: name == "cache",
				Open:    func(t *testing.T, capacity int) tier.Tier { return faulty.New(open(t, capacity), nil, nil) },
			})
		})
	}
}

func TestConformanceOfSlotTier(t *testing.T) {
	f := tiertest.NewFormat(t)
	tiertest.Run(t, tiertest.Config{
		Format: f, Bounded: true,
		// A plan with a rule that never applies.
		Open: func(t *testing.T, capacity int) tier.Tier {
			return faulty.NewSlots(openCache(t, f, capacity), fault.New(1, fault.Rate(faulty.OpPut, 0)), nil)
		},
	})
}

// script runs all operations, releases everything and returns all errors. It fails the test if a
// block without an error has wrong bytes.
func script(t *testing.T, f block.Format, tr tier.Tier) error {
	t.Helper()
	const n = 6
	buf := tiertest.Buffer(t, f.Layout.ImageBytes())
	var errs []error
	note := func(err error) bool {
		errs = append(errs, err)
		return err == nil
	}
	ctx := t.Context()
	var keys []block.Key
	for i := range n {
		key := tiertest.Key(i)
		keys = append(keys, key)
		tiertest.Seal(t, f, buf.Bytes(), key, 0)
		note(tr.Put(ctx, key, buf))
	}
	note(tr.Lookup(ctx, keys, make([]tier.State, n)))
	for _, key := range keys {
		n, err := tr.Retain(ctx, []block.Key{key})
		note(err)
		if note(tr.Get(ctx, key, buf)) {
			if err := tiertest.Check(f, buf.Bytes(), key, 0); err != nil {
				t.Error(err)
			}
		}
		tr.Release([]block.Key{key}[:n])
	}
	if st, ok := tr.(tier.SlotTier); ok {
		slotScript(t, f, st, note)
	}
	for _, key := range keys {
		note(tr.Delete(ctx, key))
	}
	if s, ok := tr.(tier.Statter); ok && s.Stats().Retained != 0 {
		t.Errorf("%d pins are left", s.Stats().Retained)
	}
	return errors.Join(errs...)
}

func slotScript(t *testing.T, f block.Format, st tier.SlotTier, note func(error) bool) {
	t.Helper()
	for i := range 3 {
		key := tiertest.Key(100 + i)
		fill, err := st.Reserve(t.Context(), key)
		if !note(err) {
			continue
		}
		tiertest.Seal(t, f, fill.Extent().Bytes(), key, 0)
		slot, err := fill.Publish()
		if note(err) {
			slot.Release()
		}
		slot, err = st.Open(t.Context(), key)
		if note(err) {
			if err := tiertest.Check(f, slot.Extent().Bytes(), key, 0); err != nil {
				t.Error(err)
			}
			slot.Release()
		}
	}
}

// Each operation fails in turn, completely and half-way. Every failure must be reported, and no
// block may stay pinned.
func TestFailTheNth(t *testing.T) {
	f := tiertest.NewFormat(t)
	tiers := map[string]struct {
		open func(p *fault.Plan) tier.Tier
		ops  []string
	}{
		"cache": {
			func(p *fault.Plan) tier.Tier { return faulty.NewSlots(openCache(t, f, 16), p, nil) },
			[]string{
				faulty.OpLookup, faulty.OpRetain, faulty.OpGet, faulty.OpPut, faulty.OpDelete,
				faulty.OpOpen, faulty.OpReserve, faulty.OpPublish,
			},
		},
		"file": {
			func(p *fault.Plan) tier.Tier { return faulty.New(openFile(t, f), p, nil) },
			[]string{faulty.OpLookup, faulty.OpRetain, faulty.OpGet, faulty.OpPut, faulty.OpDelete},
		},
	}
	cause := errors.New("planned")
	for name, tt := range tiers {
		for _, op := range tt.ops {
			t.Run(name+"/"+op, func(t *testing.T) {
				for _, partial := range []bool{false, true} {
					failNth(t, f, tt.open, op, func(r fault.Rule) fault.Rule {
						if partial {
							return r.Partial(cause)
						}
						return r.Fail(cause)
					}, cause)
				}
			})
		}
	}
}

func failNth(t *testing.T, f block.Format, open func(*fault.Plan) tier.Tier, op string, how func(fault.Rule) fault.Rule, cause error) {
	t.Helper()
	for n := 0; ; n++ {
		plan := fault.New(uint64(n), how(fault.Nth(op, n)))
		tr := open(plan)
		err := script(t, f, tr)
		if lost := plan.Unreported(err); len(lost) != 0 {
			t.Fatalf("%s %d: unreported faults: %v", op, n, lost)
		}
		if err := tr.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Fatal(err)
		}
		if plan.Injected() == 0 {
			if err != nil {
				t.Fatalf("without a fault: %v", err)
			}
			if n == 0 {
				t.Fatalf("the script does no %s", op)
			}
			return
		}
		if !errors.Is(err, cause) {
			t.Fatalf("%s %d: %v does not carry the cause", op, n, err)
		}
	}
}

func TestCorruptGetIsForTheCallerToFind(t *testing.T) {
	f := tiertest.NewFormat(t)
	tr := faulty.New(openCache(t, f, 4), fault.New(3, fault.Nth(faulty.OpGet, 0).Corrupt()), nil)
	defer closeTier(t, tr)
	buf := tiertest.Buffer(t, f.Layout.ImageBytes())
	tiertest.Seal(t, f, buf.Bytes(), tiertest.Key(1), 0)
	if err := tr.Put(t.Context(), tiertest.Key(1), buf); err != nil {
		t.Fatal(err)
	}
	for i, want := range []bool{false, true} {
		if err := tr.Get(t.Context(), tiertest.Key(1), buf); err != nil {
			t.Fatal(err)
		}
		if err := f.Verify(buf.Bytes(), tiertest.Key(1)); (err == nil) != want {
			t.Errorf("get %d: %v, want right %v", i, err, want)
		}
	}
}

func TestCorruptPutIsRefused(t *testing.T) {
	f := tiertest.NewFormat(t)
	tr := faulty.New(openCache(t, f, 4), fault.New(3, fault.Nth(faulty.OpPut, 0).Corrupt()), nil)
	defer closeTier(t, tr)
	src := tiertest.Buffer(t, f.Layout.ImageBytes())
	tiertest.Seal(t, f, src.Bytes(), tiertest.Key(1), 0)
	if err := tr.Put(t.Context(), tiertest.Key(1), src); !errors.Is(err, errdefs.ErrCorrupt) && !errors.Is(err, errdefs.ErrMismatch) {
		t.Errorf("put of an image that changed on the way: %v", err)
	}
	if err := tiertest.Check(f, src.Bytes(), tiertest.Key(1), 0); err != nil {
		t.Errorf("the caller's image changed: %v", err)
	}
	if err := tr.Put(t.Context(), tiertest.Key(1), src); err != nil {
		t.Error(err)
	}
}

func TestCorruptSlotIsFound(t *testing.T) {
	f := tiertest.NewFormat(t)
	for _, op := range []string{faulty.OpPublish, faulty.OpOpen} {
		t.Run(op, func(t *testing.T) {
			tr := faulty.NewSlots(openCache(t, f, 4), fault.New(3, fault.Nth(op, 0).Corrupt()), nil)
			defer closeTier(t, tr)
			key := tiertest.Key(1)
			fill, err := tr.Reserve(t.Context(), key)
			if err != nil {
				t.Fatal(err)
			}
			tiertest.Seal(t, f, fill.Extent().Bytes(), key, 0)
			slot, err := fill.Publish()
			if err != nil {
				t.Fatal(err)
			}
			slot.Release()
			slot, err = tr.Open(t.Context(), key)
			if err != nil {
				t.Fatal(err)
			}
			if f.Verify(slot.Extent().Bytes(), key) == nil {
				t.Error("the slot is intact")
			}
			slot.Release()
			buf := tiertest.Buffer(t, f.Layout.ImageBytes())
			if err := tr.Get(t.Context(), key, buf); !errors.Is(err, errdefs.ErrCorrupt) {
				t.Errorf("get: %v, want ErrCorrupt", err)
			}
		})
	}
}

func TestCrashStopsEverything(t *testing.T) {
	f := tiertest.NewFormat(t)
	cause := errors.New("power failure")
	tr := faulty.NewSlots(openCache(t, f, 4), fault.New(1, fault.Nth(faulty.OpPut, 1).Fail(cause).Crash()), nil)
	buf := tiertest.Buffer(t, f.Layout.ImageBytes())
	put := func(i int) error {
		tiertest.Seal(t, f, buf.Bytes(), tiertest.Key(i), 0)
		return tr.Put(t.Context(), tiertest.Key(i), buf)
	}
	if err := put(0); err != nil {
		t.Fatal(err)
	}
	fill, err := tr.Reserve(t.Context(), tiertest.Key(9))
	if err != nil {
		t.Fatal(err)
	}
	crash := put(1)
	for op, err := range map[string]error{
		"put":    crash,
		"get":    tr.Get(t.Context(), tiertest.Key(0), buf),
		"lookup": tr.Lookup(t.Context(), nil, nil),
	} {
		if !errors.Is(err, fault.ErrInjected) || !errors.Is(err, cause) {
			t.Errorf("%s after the crash: %v", op, err)
		}
	}
	fill.Abort(cause) // Abort works after a crash
	if err := tr.Close(context.WithoutCancel(t.Context())); err != nil {
		t.Error(err)
	}
}

// The synctest bubble skips waits, and hangs if an operation spins instead of waiting.
func TestDelayAndStallEndWithTheContext(t *testing.T) {
	f := tiertest.NewFormat(t)
	for name, rule := range map[string]fault.Rule{
		"delay": fault.Nth(faulty.OpRetain, 0).Delay(time.Hour),
		"stall": fault.Nth(faulty.OpRetain, 0).Stall(),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				plan := fault.New(1, rule)
				tr := faulty.New(openCache(t, f, 4), plan, nil)
				defer closeTier(t, tr)
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				begin := time.Now()
				if _, err := tr.Retain(ctx, tiertest.Keys(0)); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("retain: %v", err)
				}
				if d := time.Since(begin); d != time.Minute {
					t.Errorf("the call returned after %s", d)
				}
			})
		})
	}
}

func TestDelayAndStallGoOn(t *testing.T) {
	f := tiertest.NewFormat(t)
	synctest.Test(t, func(t *testing.T) {
		plan := fault.New(1, fault.Nth(faulty.OpLookup, 0).Delay(time.Hour), fault.Nth(faulty.OpLookup, 1).Stall())
		tr := faulty.New(openCache(t, f, 4), plan, nil)
		defer closeTier(t, tr)
		begin := time.Now()
		if err := tr.Lookup(t.Context(), nil, nil); err != nil || time.Since(begin) != time.Hour {
			t.Errorf("delayed lookup: %v after %s", err, time.Since(begin))
		}
		done := make(chan error, 1)
		go func() { done <- tr.Lookup(t.Context(), nil, nil) }()
		synctest.Wait()
		select {
		case err := <-done:
			t.Fatalf("lookup did not stall: %v", err)
		default:
		}
		plan.Release()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func closeTier(t *testing.T, tr tier.Tier) {
	t.Helper()
	if err := tr.Close(context.WithoutCancel(t.Context())); err != nil {
		t.Error(fmt.Errorf("close: %w", err))
	}
}
