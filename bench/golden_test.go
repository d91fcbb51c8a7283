package bench

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/present/presenttest"
)

var rewrite = flag.Bool("rewrite", false, "rewrite the golden files")

// sample returns a report with every part.
func sample() *Report {
	r := &Report{
		Format: Format,
		Machine: Facts{
			Device: "a GPU", Driver: "cuda", DriverVersion: "580.1 (CUDA 13.0)", CPUs: 16, GoVersion: "go1.26",
			Date: time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC), Seconds: 61.5, Command: "kvlane bench copy",
		},
		Setup: Setup{
			Bytes: 128 << 20, BatchBlocks: 8192, DriverCall: 256, PoolBytes: 2 << 30, ReferenceBytes: 1 << 30, BudgetSeconds: 50, Form: Lists, Seed: 1,
			Planner: "built-in figures",
		},
		Reference: Reference{
			ToDevice: Rate{GBps: 55, Low: 49.5, High: 55.5, Samples: 120}, ToHost: Rate{GBps: 54, Low: 53, High: 54.5, Samples: 120}, Both: Rate{GBps: 96, Low: 90, High: 98, Samples: 120},
		},
		Missing: []Missing{{Path: "staged", Reason: "no kernels: not supported"}},
	}
	for _, who := range []struct {
		path  string
		speed float64
	}{{"one-copy-each", 1}, {"kernel", 20}, {"auto", 19}} {
		for _, c := range []Cell{{4096, 1}, {4096, 32768}, {1 << 20, 128}} {
			for i, d := range []Direction{ToDevice, ToHost, Both} {
				p := samplePoint(who.path, Lists, place{c, d, HostScattered}, who.speed*float64(i+1)/(1+10/float64(c.Count)), r.Reference.Of(d).GBps)
				if p.Path == Auto {
					p.PredictedMicros = 0.9 * p.P50Micros
				}
				r.Points = append(r.Points, p)
			}
		}
	}
	r.Peers = &PeerReport{
		Device: "another GPU", Reference: Reference{ToDevice: Rate{GBps: 396, Low: 390, High: 398, Samples: 16}, ToHost: Rate{GBps: 395, Low: 391, High: 397, Samples: 16}},
		Points: []Point{
			samplePoint("one-copy-each", Lists, place{Cell{4096, 100_000}, ToDevice, BothScattered}, 1.65, 396),
			samplePoint("kernel", Lists, place{Cell{4096, 100_000}, ToDevice, BothScattered}, 334, 396),
			samplePoint("kernel", Lists, place{Cell{4096, 100_000}, ToHost, BothContiguous}, 340, 395),
		},
	}
	return r
}

// samplePoint returns a point whose figures are derived from its rate.
func samplePoint(path string, f Form, at place, gbps, large float64) Point {
	p := Point{
		Path: path, Baseline: path == "one-copy-each", Form: f, Cell: at.Cell, Blocks: at.Count, Direction: at.dir, Layout: at.layout, Reps: 6,
		GBps: gbps, LowGBps: 0.98 * gbps, HighGBps: 1.01 * gbps, RoundGBps: []float64{gbps, 0.98 * gbps, 1.01 * gbps}, LargeGBps: large, Share: gbps / large,
		PrepMicros: 0.25, PrepP99Micros: 0.5, PostMicros: 1, PostP50Micros: 0.9, PostP99Micros: 2,
	}
	if p.Baseline && p.Count == 32768 {
		p.Blocks = 3000
	}
	if !p.Baseline {
		p.Traveled = "kernel"
	}
	p.Bytes = int64(p.Blocks) * p.Size
	p.MeanMicros = float64(p.Bytes) / p.GBps / 1e3
	p.P50Micros, p.P99Micros = p.MeanMicros, 1.5*p.MeanMicros
	p.TxMicros, p.TxP99Micros = p.MeanMicros-1, 1.5*p.MeanMicros
	return p
}

func TestForms(t *testing.T) {
	r := sample()
	simulated := sample()
	simulated.Machine.Simulated, simulated.Points, simulated.Peers = true, simulated.Points[:1], nil
	presenttest.Check(t, "report", *rewrite, r.WriteText)
	presenttest.Check(t, "simulated", *rewrite, simulated.WriteText)
}

func TestJSONComesBack(t *testing.T) {
	r := sample()
	b, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	got, err := Read(bytes.NewReader(b))
	if diff := cmp.Diff(r, got); err != nil || diff != "" {
		t.Errorf("%v, -want +got:\n%s", err, diff)
	}
	for text, want := range map[string]error{`{"format":1}`: errdefs.ErrMismatch, `{"points":[]}`: errdefs.ErrMismatch} {
		if _, err := Read(strings.NewReader(text)); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", text, err, want)
		}
	}
	if _, err := Read(strings.NewReader("no report")); err == nil {
		t.Error("no error for invalid JSON")
	}
}

func TestCompare(t *testing.T) {
	old, now := sample(), sample()
	now.Machine.Device, now.Reference.ToHost.GBps = "another GPU", 40
	find := func(path string, c Cell, d Direction) *Point {
		for i := range now.Points {
			if p := &now.Points[i]; p.Path == path && p.Cell == c && p.Direction == d {
				return p
			}
		}
		t.Fatal("the report lacks the point to change")
		return nil
	}
	find("kernel", Cell{4096, 32768}, ToDevice).GBps *= 0.8  // slower
	find("kernel", Cell{4096, 32768}, ToHost).GBps *= 0.97   // within the threshold
	find("auto", Cell{4096, 32768}, ToDevice).GBps *= 1.5    // faster
	noisy := find("auto", Cell{1 << 20, 128}, ToDevice)      // slower, but within its variation
	noisy.GBps, noisy.LowGBps = noisy.GBps*0.8, noisy.GBps/2 //
	find("auto", Cell{1 << 20, 128}, ToHost).Path = "staged" // gone and new
	c := now.Compare(old, 0.05)
	if len(c.Notes) != 2 || c.Gone != 1 || c.Added != 1 || len(c.Changes) != len(old.Points)-1 {
		t.Errorf("notes %v, %d missing, %d added, %d changes", c.Notes, c.Gone, c.Added, len(c.Changes))
	}
	if c.Worse(0) != 1 || c.Worse(0.1) != 1 || c.Worse(0.25) != 0 {
		t.Errorf("points that are worse: %d by anything, %d by 10%%, %d by 25%%", c.Worse(0), c.Worse(0.1), c.Worse(0.25))
	}
	presenttest.Check(t, "compare", *rewrite, c.WriteText)
	old.Incomplete = Interrupted
	if c := now.Compare(old, 0.05); len(c.Notes) != 3 || c.Notes[0] != "the earlier run is incomplete: "+Interrupted || c.Unjudged() == "" {
		t.Errorf("notes %q, unjudged %q", c.Notes, c.Unjudged())
	}
	if same := now.Compare(now, 0.05); same.Unjudged() != "" {
		t.Errorf("every point was measured, and %q", same.Unjudged())
	}
	presenttest.Check(t, "compare-same", *rewrite, sample().Compare(sample(), 0.05).WriteText)
}

func TestViews(t *testing.T) {
	r := sample()
	rows := r.BySize(ToDevice, HostScattered)
	if len(rows) != 3 || len(rows[0].Points) != 2 || rows[0].Points[0].Count != 32768 {
		t.Errorf("rows by size: %+v", rows)
	}
	if r.LatencySize() != 4096 {
		t.Errorf("latency is shown of %d", r.LatencySize())
	}
	if rows := r.ByCount(4096, ToHost, HostScattered); len(rows) != 3 || len(rows[1].Points) != 2 || rows[1].Points[0].Count != 1 {
		t.Errorf("rows by count: %+v", rows)
	}
	regrets := r.Regrets()
	if len(regrets) != 9 {
		t.Fatalf("%d regrets", len(regrets))
	}
	for _, l := range regrets {
		near(t, "lost", l.Lost, 0.05, 1e-9)
		near(t, "beaten", l.Beaten, -18, 1e-9)
		near(t, "predicted", l.Predicted, 0.9, 1e-9)
		if l.Best != "kernel" || l.Traveled != "kernel" || l.Baseline != "one-copy-each" || !l.Chance() {
			t.Errorf("regret %+v", l)
		}
	}
}

// A disturbance during one round affects both contenders, and must not appear as a loss of the one
// that was slower overall.
func TestRegretIsOfTurns(t *testing.T) {
	r := sample()
	for i := range r.Points {
		p := &r.Points[i]
		switch p.Path {
		case Auto:
			p.RoundGBps = []float64{50, 20, 50}
			p.GBps = 20 // most of its repetitions were in the second round
		case "kernel":
			p.RoundGBps = []float64{50, 20, 51}
			p.GBps = 50
		}
	}
	for _, l := range r.Regrets() {
		near(t, "lost", l.Lost, 0, 1e-9)
	}
}
