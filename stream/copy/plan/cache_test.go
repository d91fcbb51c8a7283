package plan_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/stream/copy/plan"
)

func keyed(k plan.Key) plan.Profile {
	p := plan.Default()
	p.Key, p.Source, p.Made = k, "measured", time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	return p
}

func TestCacheKeepsProfiles(t *testing.T) {
	c := plan.Cache{Dir: filepath.Join(t.TempDir(), "not", "yet", "there")}
	if _, err := c.Load(testKey); !errors.Is(err, errdefs.ErrNotFound) {
		t.Fatalf("error %v before anything was stored, want ErrNotFound", err)
	}
	for _, source := range []string{"measured", "measured again"} {
		want := keyed(testKey)
		want.Source = source
		if err := c.Store(want); err != nil {
			t.Fatal(err)
		}
		got, err := c.Load(testKey)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Error(d)
		}
	}
	// Keys that differ in one field are different.
	for name, change := range map[string]func(k *plan.Key){
		"GPU": func(k *plan.Key) { k.GPU += "x" }, "driver": func(k *plan.Key) { k.Driver += "x" },
		"PCI": func(k *plan.Key) { k.PCI += "x" }, "speed": func(k *plan.Key) { k.LinkSpeed = "" },
		"width": func(k *plan.Key) { k.LinkWidth = 8 }, "NUMA": func(k *plan.Key) { k.NUMANode = 0 },
		"kernels": func(k *plan.Key) { k.Kernels += "x" }, "NIC": func(k *plan.Key) { k.NIC = "mlx5_0" },
	} {
		k := testKey
		change(&k)
		if _, err := c.Load(k); !errors.Is(err, errdefs.ErrNotFound) {
			t.Errorf("load with another %s: error %v, want ErrNotFound", name, err)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(c.Dir, ".new-*")); len(left) > 0 {
		t.Errorf("temporary files left: %v", left)
	}
}

func TestCacheReportsErrors(t *testing.T) {
	c := plan.Cache{Dir: t.TempDir()}
	if err := c.Store(keyed(testKey)); err != nil {
		t.Fatal(err)
	}
	name, err := c.File(testKey)
	if err != nil {
		t.Fatal(err)
	}
	good, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	for what, b := range map[string]struct {
		bytes string
		want  error
	}{
		"empty":           {"", errdefs.ErrCorrupt},
		"half":            {string(good[:len(good)/2]), errdefs.ErrCorrupt},
		"zeroes":          {string(make([]byte, 4096)), errdefs.ErrCorrupt},
		"another key":     {strings.Replace(string(good), "GPU-1b2c", "GPU-9999", 1), errdefs.ErrMismatch},
		"another version": {strings.Replace(string(good), `"version": 6`, `"version": 7`, 1), errdefs.ErrMismatch},
	} {
		if err := os.WriteFile(name, []byte(b.bytes), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Load(testKey); !errors.Is(err, b.want) {
			t.Errorf("%s: error %v, want %v", what, err, b.want)
		}
		// A damaged profile is replaced by a new one.
		p, loaded, err := c.LoadOrMake(t.Context(), testKey, func(context.Context) (plan.Profile, bool, error) { return keyed(testKey), true, nil })
		if err != nil || loaded || p.Key != testKey {
			t.Errorf("%s: loaded %v, error %v", what, loaded, err)
		}
		if _, err := c.Load(testKey); err != nil {
			t.Errorf("%s: after it was made anew: %v", what, err)
		}
	}
}

func TestCacheCannotBeWritten(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	c := plan.Cache{Dir: filepath.Join(file, "profiles")}
	if err := c.Store(keyed(testKey)); err == nil {
		t.Error("stored under a file")
	}
	if err := (plan.Cache{Dir: t.TempDir()}).Store(plan.Profile{}); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("stored a profile without figures: %v", err)
	}
	t.Setenv("XDG_CACHE_HOME", "")
	t.Setenv("HOME", "")
	if _, err := (plan.Cache{}).Load(testKey); err == nil || errors.Is(err, errdefs.ErrNotFound) {
		t.Errorf("error %v without a home directory, want one that reports it", err)
	}
	base := t.TempDir()
	t.Setenv("XDG_CACHE_HOME", base)
	if name, err := (plan.Cache{}).File(testKey); err != nil || !strings.HasPrefix(name, filepath.Join(base, "kvlane", "profiles")) {
		t.Errorf("%s, %v: want a file under the user's cache directory", name, err)
	}
}

// TestOneMeasuresAtATime calls LoadOrMake concurrently. One call must make the profile, and the
// others must load it.
func TestOneMeasuresAtATime(t *testing.T) {
	c := plan.Cache{Dir: t.TempDir()}
	var made, inside atomic.Int32
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			p, _, err := c.LoadOrMake(t.Context(), testKey, func(context.Context) (plan.Profile, bool, error) {
				if inside.Add(1) != 1 {
					t.Error("two measurements run concurrently")
				}
				defer inside.Add(-1)
				made.Add(1)
				time.Sleep(5 * time.Millisecond)
				return keyed(testKey), true, nil
			})
			if err != nil || p.Key != testKey {
				t.Errorf("%+v, %v", p.Key, err)
			}
		})
	}
	wg.Wait()
	if n := made.Load(); n != 1 {
		t.Errorf("made %d times", n)
	}
}

func TestLockHasADeadline(t *testing.T) {
	c := plan.Cache{Dir: t.TempDir()}
	ctx, cancel := context.WithCancel(t.Context())
	_, err := c.Make(t.Context(), func(context.Context) (plan.Profile, bool, error) {
		cancel()
		_, _, err := c.LoadOrMake(ctx, testKey, func(context.Context) (plan.Profile, bool, error) {
			t.Error("two measurements run concurrently")
			return plan.Profile{}, false, nil
		})
		return plan.Profile{}, false, err
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want the context's", err)
	}
	if _, err := c.Load(testKey); !errors.Is(err, errdefs.ErrNotFound) {
		t.Errorf("error %v: something was stored that should not be", err)
	}
}

// TestLockIsNotWaitedForForEver checks that a process that hangs in a measurement delays others
// only for a limited time.
func TestLockIsNotWaitedForForEver(t *testing.T) {
	c := plan.Cache{Dir: t.TempDir(), Patience: time.Millisecond}
	_, err := c.Make(t.Context(), func(ctx context.Context) (plan.Profile, bool, error) {
		return c.LoadOrMake(ctx, testKey, func(context.Context) (plan.Profile, bool, error) {
			t.Error("two measurements run concurrently")
			return plan.Profile{}, false, nil
		})
	})
	if !errors.Is(err, errdefs.ErrBusy) {
		t.Errorf("error %v, want ErrBusy", err)
	}
}

func TestMakeReplaces(t *testing.T) {
	c := plan.Cache{Dir: t.TempDir()}
	if err := c.Store(keyed(testKey)); err != nil {
		t.Fatal(err)
	}
	want := keyed(testKey)
	want.Source = "anew"
	if _, err := c.Make(t.Context(), func(context.Context) (plan.Profile, bool, error) { return want, true, nil }); err != nil {
		t.Fatal(err)
	}
	if got, err := c.Load(testKey); err != nil || got.Source != "anew" {
		t.Errorf("%q, %v", got.Source, err)
	}
	cause := errors.New("no GPU")
	if _, err := c.Make(t.Context(), func(context.Context) (plan.Profile, bool, error) { return plan.Profile{}, true, cause }); !errors.Is(err, cause) {
		t.Errorf("error %v, want its cause", err)
	}
}
