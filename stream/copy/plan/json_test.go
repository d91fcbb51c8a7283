package plan_test

import (
	"encoding/json"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/stream"
	"github.com/kvlane/kvlane/stream/copy/plan"
)

var testKey = plan.Key{
	GPU: "GPU-1b2c", Driver: "580.159", PCI: "0000:81:00.0", LinkSpeed: "32.0 GT/s", LinkWidth: 16, NUMANode: 1, Kernels: "0badcafe",
}

func TestJSONRoundTrip(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 5))
	profiles := []plan.Profile{plan.Default()}
	for range 20 {
		p := randomProfile(rng)
		p.Key, p.Made = testKey, time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
		profiles = append(profiles, p)
	}
	for _, p := range profiles {
		b, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		var got plan.Profile
		if err := json.Unmarshal(b, &got); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(p, got); d != "" {
			t.Fatal(d)
		}
	}
}

// TestDamageIsFound changes one detail of a good profile at a time.
func TestDamageIsFound(t *testing.T) {
	good, err := json.Marshal(randomProfile(rand.New(rand.NewPCG(6, 6))))
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		old, new string
		want     error
	}{
		"another format":     {`"kvlane-profile"`, `"kvlane-block"`, errdefs.ErrCorrupt},
		"a later version":    {`"version":6`, `"version":7`, errdefs.ErrMismatch},
		"an unknown field":   {`"source"`, `"sauce"`, errdefs.ErrCorrupt},
		"an unknown path":    {`"kernel"`, `"kernel-bulk"`, errdefs.ErrCorrupt},
		"no path":            {`"kernel"`, `"none"`, errdefs.ErrCorrupt},
		"an unknown way":     {`"d2h"`, `"d2x"`, errdefs.ErrCorrupt},
		"negative":           {`"lead_ns":`, `"lead_ns":-`, errdefs.ErrCorrupt},
		"too many times":     {`"times_ns":[[`, `"times_ns":[[1,`, errdefs.ErrCorrupt},
		"too many rows":      {`"times_ns":[`, `"times_ns":[[1,2,3,4,5,6,7],`, errdefs.ErrCorrupt},
		"a falling time":     {`"times_ns":[[`, `"times_ns":[[1e12`, errdefs.ErrCorrupt},
		"descending sizes":   {`"sizes":[256,`, `"sizes":[2560000,`, errdefs.ErrCorrupt},
		"fewer sizes":        {`"sizes":[256,`, `"sizes":[`, errdefs.ErrCorrupt},
		"fewer counts":       {`"counts":[1,`, `"counts":[`, errdefs.ErrCorrupt},
		"cut off":            {`]}`, ``, errdefs.ErrCorrupt},
		"something after it": {`"format"`, `"format":1} {"format"`, errdefs.ErrCorrupt},
	} {
		bad := strings.Replace(string(good), c.old, c.new, 1)
		if bad == string(good) {
			t.Fatalf("%s: nothing was changed", name)
		}
		if _, err := plan.Decode([]byte(bad)); !errors.Is(err, c.want) {
			t.Errorf("%s: error %v, want %v", name, err, c.want)
		}
	}
	if _, err := plan.Decode(append(slices.Clone(good), make([]byte, 5<<20)...)); !errors.Is(err, errdefs.ErrCorrupt) {
		t.Errorf("decode a too long profile: error %v, want ErrCorrupt", err)
	}
	if _, err := plan.Decode(append(slices.Clone(good), "{}"...)); !errors.Is(err, errdefs.ErrCorrupt) {
		t.Errorf("two of them: error %v, want ErrCorrupt", err)
	}
}

func TestProfileIsChecked(t *testing.T) {
	for name, spoil := range map[string]func(p *plan.Profile){
		"no sizes":        func(p *plan.Profile) { p.Sizes = nil },
		"a size of zero":  func(p *plan.Profile) { p.Sizes[0] = 0 },
		"equal sizes":     func(p *plan.Profile) { p.Sizes[1] = p.Sizes[0] },
		"a rate below 0":  func(p *plan.Profile) { p.GBps[0] = -1 },
		"a rate of NaN":   func(p *plan.Profile) { p.GBps[0] = math.NaN() },
		"a lead too long": func(p *plan.Profile) { p.Models[0].Lead = 1e16 },
		"a duplex of NaN": func(p *plan.Profile) { p.Models[0].Duplex = math.NaN() },
		"a time of zero":  func(p *plan.Profile) { p.Models[0].Times[0], p.Models[0].Lead = 0, 0 },
		"a time of NaN":   func(p *plan.Profile) { p.Models[0].Times[2] = math.NaN() },
		"a time of inf":   func(p *plan.Profile) { p.Models[0].Times[7] = math.Inf(1) },
		"a time too few":  func(p *plan.Profile) { p.Models[0].Times = p.Models[0].Times[1:] },
		"no more growth":  func(p *plan.Profile) { p.Models[0].Times[7] = p.Models[0].Times[6] },
		"no counts":       func(p *plan.Profile) { p.Counts = nil },
		"a single count":  func(p *plan.Profile) { p.Counts = p.Counts[:1] },
		"the same twice":  func(p *plan.Profile) { p.Models = append(p.Models, p.Models[0]) },
		"an odd side":     func(p *plan.Profile) { p.Models[0].Side = 7 },
		"an odd path":     func(p *plan.Profile) { p.Models[0].Path = 200 },
		"CTAs":            func(p *plan.Profile) { p.Models[0].CTAs = -1 },
		"too many": func(p *plan.Profile) {
			for i := range 64 {
				m := p.Models[0]
				m.CTAs = 1000 + i
				p.Models = append(p.Models, m)
			}
		},
	} {
		p := plan.Default()
		spoil(&p)
		if err := p.Validate(); !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("%s: error %v, want ErrInvalid", name, err)
		}
		if _, err := json.Marshal(p); err == nil {
			t.Errorf("%s: it was encoded", name)
		}
		if _, err := plan.New(p, plan.Options{}); !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("%s: a planner was made: %v", name, err)
		}
	}
}

// FuzzDecode checks that every decoded profile can be used for planning, and that it decodes to the
// same value after encoding.
func FuzzDecode(f *testing.F) {
	for _, p := range []plan.Profile{plan.Default(), {Source: "x", Sizes: []int64{1, 4096}, Counts: []int64{1, 2}, Models: []plan.Model{{
		Path: stream.PathKernel, CTAs: 4, Times: []float64{1000, 1080, 1000, 1080}, Lead: 3,
	}}}} {
		b, err := json.Marshal(p)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := plan.Decode(b)
		if err != nil {
			if !errors.Is(err, errdefs.ErrCorrupt) && !errors.Is(err, errdefs.ErrMismatch) {
				t.Fatalf("error %v wraps nothing to decide by", err)
			}
			return
		}
		pl := newPlanner(t, p, plan.Options{})
		for _, r := range []plan.Request{
			{Pieces: 1, Bytes: 1}, {Dir: plan.D2H, Pieces: 1 << 20, Runs: 1 << 20, HostRuns: 3, Bytes: 1 << 40},
		} {
			if c := pl.Choose(r, allPaths); c.Path == stream.PathNone || c.Predicted < 0 {
				t.Fatalf("%+v for %+v", c, r)
			}
		}
		again, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		q, err := plan.Decode(again)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(p, q); d != "" {
			t.Fatal(d)
		}
	})
}
