package profile_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/gdr"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/profile"
	"github.com/kvlane/kvlane/stream"
	"github.com/kvlane/kvlane/stream/copy/plan"
)

// deafNICs are NICs that cannot register memory.
type deafNICs struct{ *gdr.NICs }

func (deafNICs) Register(...*mem.Region) error {
	return fmt.Errorf("register nothing: %w", errdefs.ErrNoMemory)
}

// TestNICsThatCannotBeMeasured checks that the plan then uses the device's own paths, and that the
// cause is reported.
func TestNICsThatCannotBeMeasured(t *testing.T) {
	dev := openGPU(t)
	nics, err := gdr.Open(dev, gdr.Config{Provider: gdr.Soft}, nil)
	if err != nil {
		t.Fatal(err)
	}
	deaf, dir := deafNICs{nics}, t.TempDir()
	stored := plan.Default()
	store := func(nics profile.NICs, source string) {
		stored.Key, stored.Source = profile.Key(dev, nics), source
		if err := (plan.Cache{Dir: dir}).Store(stored); err != nil {
			t.Fatal(err)
		}
	}
	store(nil, "measured without NICs")
	for _, want := range []string{"register ", "has no figures of it"} {
		p, notes, err := profile.Find(t.Context(), dev, deaf, profile.Once, dir)
		if err != nil {
			t.Fatal(err)
		}
		if all := strings.Join(notes, "\n"); p.Source != "measured without NICs" || !strings.Contains(all, "copies do not use a NIC: ") || !strings.Contains(all, want) {
			t.Errorf("profile %q, notes %q", p.Source, all)
		}
		store(deaf, "measured with NICs, which could not be")
	}
	if err := nics.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestProfilesOfNICsAreKeptApart checks that other NICs, or other queue pairs on them, have
// separate profiles, and that profiles of software NICs are not stored.
func TestProfilesOfNICsAreKeptApart(t *testing.T) {
	dev := openGPU(t)
	keys := []plan.Key{profile.Key(dev, nil)}
	for _, rdma := range []gdr.Config{{}, {QueuePairs: 2}, {MTU: 1024}, {Count: 2}, {NICs: []string{"soft1"}, Count: 2}} {
		rdma.Provider = gdr.Soft
		nics, err := gdr.Open(dev, rdma, nil)
		if err != nil {
			t.Fatal(err)
		}
		key := profile.Key(dev, nics)
		if slices.Contains(keys, key) {
			t.Errorf("%+v: the key of another: %s", rdma, key)
		}
		keys = append(keys, key)
		if len(keys) == 2 {
			c, err := profile.Calibrate(t.Context(), dev, profile.Options{
				Dir: t.TempDir(), Bytes: 1 << 20, Budget: 10 * time.Millisecond, NICs: nics,
			})
			if err != nil {
				t.Fatal(err)
			}
			measured := slices.ContainsFunc(c.Profile.Models, func(m plan.Model) bool { return m.Path == stream.PathNICSoft && m.Points > 0 })
			if c.Profile.Key != key || c.Stored || !measured {
				t.Errorf("profile of %s, stored %v, NIC measured %v", c.Profile.Key, c.Stored, measured)
			}
		}
		if err := nics.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
}
