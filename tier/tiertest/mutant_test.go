package tiertest_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/internal/sys/hostmem"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/tier"
	"github.com/kvlane/kvlane/tier/cache"
	"github.com/kvlane/kvlane/tier/faulty"
	"github.com/kvlane/kvlane/tier/tiertest"
)

func TestMain(m *testing.M) { testkit.Main(m) }

func openCache(t *testing.T, f block.Format, n int) *cache.Tier {
	t.Helper()
	b, err := hostmem.Alloc(int64(n) * f.Layout.ImageBytes())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := hostmem.Free(b); err != nil {
			t.Error(err)
		}
	})
	r, err := hostmem.Region(b)
	if err != nil {
		t.Fatal(err)
	}
	c, err := cache.Open(cache.Config{Memory: r, Formats: block.Formats{f}})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// The mutants are tiers with one defect each.

// optimist reports every block as a hit.
type optimist struct{ *cache.Tier }

func (o optimist) Lookup(ctx context.Context, keys []block.Key, states []tier.State) error {
	err := o.Tier.Lookup(ctx, keys, states)
	for i := range states {
		if states[i] == tier.Failed || states[i] == tier.Filling {
			states[i] = tier.Ready
		}
	}
	return err
}

// forgetful reports success for a Put that it refused.
type forgetful struct{ *cache.Tier }

func (f forgetful) Put(ctx context.Context, key block.Key, src mem.Extent) error {
	if err := f.Tier.Put(ctx, key, src); err != nil && !errors.Is(err, errdefs.ErrCorrupt) {
		return err
	}
	return nil
}

// loose does not pin retained blocks.
type loose struct{ *cache.Tier }

func (l loose) Retain(ctx context.Context, keys []block.Key) (int, error) {
	n, err := l.Tier.Retain(ctx, keys)
	l.Tier.Release(keys[:n])
	return n, err
}

func (l loose) Release([]block.Key) {}

// gappy continues behind a missing block, so it pins more blocks than it reports.
type gappy struct{ *cache.Tier }

func (g gappy) Retain(ctx context.Context, keys []block.Key) (int, error) {
	n, err := g.Tier.Retain(ctx, keys)
	if n+1 < len(keys) && err == nil {
		_, err = g.Tier.Retain(ctx, keys[n+1:])
	}
	return n, err
}

// together fails all blocks of a PutMany if one fails.
type together struct{ *cache.Tier }

func (m together) PutMany(ctx context.Context, keys []block.Key, srcs []mem.Extent, errs []error) {
	for i := range keys {
		if err := m.Put(ctx, keys[i], srcs[min(i, len(srcs)-1)]); err != nil {
			for k := range errs {
				errs[k] = err
			}
			return
		}
		errs[min(i, len(errs)-1)] = nil
	}
}

// careless does not check the blocks that it reads.
type careless struct{ *faulty.SlotTier }

func (c careless) Read(ctx context.Context, key block.Key, dst mem.Extent) error {
	if err := c.Get(ctx, key, dst); err != nil && !errors.Is(err, errdefs.ErrNotFound) {
		return err
	}
	return nil
}

// disordered evicts the start of a prompt first.
type disordered struct{ *cache.Tier }

func (disordered) SetOrder(*tier.Order) {}

func (disordered) Use([]block.Key, tier.Place) {}

func (d disordered) Retain(ctx context.Context, keys []block.Key) (int, error) {
	for i := range keys {
		if n, err := d.Tier.Retain(ctx, keys[i:i+1]); n == 0 {
			return i, err
		}
	}
	return len(keys), nil
}

// TestSuiteCatchesMutants runs the suite on each mutant in a separate process. The suite must fail.
func TestSuiteCatchesMutants(t *testing.T) {
	f := tiertest.NewFormat(t)
	mutants := map[string]func(t *testing.T, n int) tier.Tier{
		"sound":      func(t *testing.T, n int) tier.Tier { return openCache(t, f, n) },
		"optimist":   func(t *testing.T, n int) tier.Tier { return optimist{openCache(t, f, n)} },
		"forgetful":  func(t *testing.T, n int) tier.Tier { return forgetful{openCache(t, f, n)} },
		"loose":      func(t *testing.T, n int) tier.Tier { return loose{openCache(t, f, n)} },
		"gappy":      func(t *testing.T, n int) tier.Tier { return gappy{openCache(t, f, n)} },
		"together":   func(t *testing.T, n int) tier.Tier { return together{openCache(t, f, n)} },
		"disordered": func(t *testing.T, n int) tier.Tier { return disordered{openCache(t, f, n)} },
		"careless":   func(t *testing.T, n int) tier.Tier { return careless{faulty.NewSlots(openCache(t, f, n), nil, nil)} },
		"bit flips": func(t *testing.T, n int) tier.Tier {
			return faulty.NewSlots(openCache(t, f, n), fault.New(1, fault.Every(faulty.OpGet, 5).Corrupt()), nil)
		},
		"lost errors": func(t *testing.T, n int) tier.Tier {
			return faulty.NewSlots(openCache(t, f, n), fault.New(1, fault.Nth(faulty.OpDelete, 0).Fail(nil)), nil)
		},
	}
	const variable = "KVLANE_TIERTEST_MUTANT"
	if name := os.Getenv(variable); name != "" {
		tiertest.Run(t, tiertest.Config{Format: f, Bounded: true, Open: mutants[name]})
		return
	}
	for name := range mutants {
		t.Run(name, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestSuiteCatchesMutants$", "-test.timeout=60s")
			cmd.Env = append(os.Environ(), variable+"="+name)
			out, err := cmd.CombinedOutput()
			var exit *exec.ExitError
			switch {
			case name == "sound":
				if err != nil {
					t.Errorf("the suite fails on a sound tier: %v\n%s", err, out)
				}
			case !errors.As(err, &exit) || !strings.Contains(string(out), "--- FAIL: TestSuiteCatchesMutants/"):
				t.Errorf("the suite found nothing wrong: %v\n%s", err, out)
			}
		})
	}
}
