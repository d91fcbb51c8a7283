package request

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvlane/kvlane/bench"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/present/presenttest"
)

var rewrite = flag.Bool("rewrite", false, "write the golden files anew")

// sample returns a report with every kind of point.
func sample() *Report {
	r := &Report{
		Kind: Kind, Format: Format, Version: "v1.2.3",
		Machine: bench.Facts{
			Device: "a GPU", UUID: "GPU-1", Driver: "cuda", DriverVersion: "580.1", CPUs: 16, GoVersion: "go1.26",
			Date: time.Date(2026, 11, 22, 8, 0, 0, 0, time.UTC), Seconds: 101.5, Command: "kvlane bench store",
		},
		Setup: Setup{
			Geometries: []string{"70b-tp8"}, Blocks: []int{1, 1024}, Requests: []int{1}, Bytes: 2 << 30, LargeBytes: 256 << 20, BudgetSeconds: 120, Seed: 1,
			LoadPolicy: "background", DumpPolicy: "background", Engine: "--policy background",
		},
		Reference: bench.Reference{
			ToDevice: bench.Rate{GBps: 54.8, Low: 54.5, High: 55, Samples: 20}, ToHost: bench.Rate{GBps: 54, Low: 53.5, High: 54.5, Samples: 20},
			Both: bench.Rate{GBps: 90, Low: 88, High: 91, Samples: 20},
		},
		LeftOut: []string{"70b-tp8, 8 x 8192 blocks: 16 GiB are more than the 2 GiB of all requests at a time"},
		Notes:   []string{"copy paths are chosen by built-in figures"},
	}
	for _, w := range []Work{Load, Dump, Both} {
		for _, blocks := range []int{1, 1024} {
			for _, layerwise := range []bool{false, true} {
				p := Point{
					Place:      Place{Geometry: "70b-tp8", Work: w, Layerwise: layerwise, Blocks: blocks, Requests: 1},
					BlockBytes: 256 << 10, PieceBytes: 4 << 10, Bytes: int64(blocks) << 18, Reps: 30, GBps: 37.6, LowGBps: 37, HighGBps: 38, LargeGBps: 54.8, PercentOfC: 68.6,
					RawGBps: 50.1, RawMicros: 14.5, P50Micros: 70.25, P99Micros: 141, CPUMicrosPerBlock: 5.25, AllocsPerBlock: 1.5, Path: "kernel",
				}
				if w != Dump {
					p.Hits = InCache
				}
				if w == Both {
					p.DumpP50Micros, p.DumpP99Micros, p.LoadsOverAlone = 80, 160, 1.125
				}
				if w != Load {
					p.DurableP50Micros, p.DurableP99Micros = 90, 180
				}
				if layerwise && w != Dump {
					p.GBps /= 2
					p.LeasedMicros, p.BegunMicros = 9.5, 31
					for k := range 32 {
						p.LayersMicros = append(p.LayersMicros, 100+4*float64(k))
					}
				}
				r.Points = append(r.Points, p)
			}
		}
	}
	r.Points[3].Requests, r.Points[3].SlowestOverFair = 8, 1.45
	r.ProductCost = &ProductCost{What: "products of 8192 x 8192 bf16 matrices", Pairs: 20, Losses: []Loss{{
		Place: r.Points[2].Place, GBps: 40.5, AloneTFLOPS: 801, BesideTFLOPS: 790, Loss: 0.0137, Low: 0.01, High: 0.02,
	}}}
	return r
}

func TestText(t *testing.T) {
	presenttest.Check(t, "report", *rewrite, sample().WriteText)
	simulated := sample()
	simulated.Machine.Simulated, simulated.Setup.Still, simulated.Setup.Engine = true, true, ""
	simulated.Points, simulated.ProductCost, simulated.LeftOut, simulated.Notes = simulated.Points[:1], nil, nil, nil
	simulated.Setup.DumpPolicy = "latency"
	presenttest.Check(t, "still", *rewrite, simulated.WriteText)
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
	for _, field := range []string{"blocks", "piece_bytes", "layerwise", "gbps", "percent_of_c", "p50_us", "p99_us", "layers_us"} {
		if !strings.Contains(string(b), `"`+field+`":`) {
			t.Errorf("no field %q", field)
		}
	}
	for _, text := range []string{`{"format":3}`, `{"kind":"kvlane bench store","format":0}`} { // a report of bench copy, and one of another version
		if _, err := Read(strings.NewReader(text)); !errors.Is(err, errdefs.ErrMismatch) {
			t.Errorf("%s: %v", text, err)
		}
	}
	if _, err := Read(strings.NewReader("no report")); err == nil {
		t.Error("no error for invalid JSON")
	}
}

func TestCompare(t *testing.T) {
	old, now := sample(), sample()
	now.Machine.DriverVersion, now.Setup.Engine = "590.1", ""
	now.Points[0].GBps *= 0.8
	now.Points[1].GBps *= 1.02 // within the threshold
	now.Points[5].GBps *= 1.5
	now.Points[6].Requests = 8
	now.Setup.LoadPolicy, old.Setup.LoadPolicy, old.Setup.DumpPolicy = "throughput", "", "" // as in a report without these fields
	c := now.Compare(old, 0.05)
	if len(c.Notes) != 2 || c.Gone != 1 || c.Added != 1 || len(c.Changes) != len(old.Points)-1 || c.Worse(0.1) != 1 {
		t.Errorf("notes %v, %d missing, %d added, %d changes", c.Notes, c.Gone, c.Added, len(c.Changes))
	}
	presenttest.Check(t, "compare", *rewrite, c.WriteText)
	old.Incomplete = bench.Interrupted
	if c := now.Compare(old, 0.05); len(c.Notes) != 3 || !strings.Contains(c.Notes[0], "the earlier run is incomplete") {
		t.Errorf("notes of a comparison with an incomplete run: %q", c.Notes)
	}
}

func TestOptionsAreCheckedAtOnce(t *testing.T) {
	o := Options{
		Geometries: []string{"70b-tp8", "9b"}, Blocks: []int{0}, Requests: []int{MaxRequests + 1}, Work: []Work{"idle"}, Forms: []Form{"half"},
		Hits: []Hits{"tape", OnDisk}, Bytes: -1, Budget: -1, Pairs: 1,
	}
	err := o.Validate()
	if !errors.Is(err, errdefs.ErrInvalid) {
		t.Fatal(err)
	}
	for _, want := range []string{`"9b"`, "0 blocks of a request", "4097 requests", "1 pairs", `"idle"`, `"half"`, `"tape"`, "no directory", "-1 bytes", "-1ns"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is missing in:\n%v", want, err)
		}
	}
	o = tiny()
	o.Blocks, o.Requests, o.Bytes = []int{64}, []int{1}, 8<<20
	if err := o.Validate(); !errors.Is(err, errdefs.ErrInvalid) || !strings.Contains(err.Error(), "allow more bytes") {
		t.Error(err)
	}
	for _, n := range []int{0, -1, MaxBlocks + 1} {
		if err := (Options{Blocks: []int{n}}).Validate(); err == nil || strings.Count(err.Error(), "blocks of a request") != 1 {
			t.Errorf("%d blocks, once: %v", n, err)
		}
	}
	if err := (Options{BesideBlocks: -1}).Validate(); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("-1 blocks beside a product: %v", err)
	}
	if err := (Options{}).Validate(); err != nil {
		t.Error(err)
	}
}

func TestGeometries(t *testing.T) {
	for _, g := range Geometries() {
		blocks, err := g.blocks()
		if err != nil || g.About == "" {
			t.Errorf("%s: %v", g.Name, err)
		}
		bytes, shards := int64(0), 0
		for _, b := range blocks {
			if err := b.Identity.Validate(); err != nil {
				t.Errorf("%s: %v", g.Name, err)
			}
			bytes += b.Layout.DataBytes()
			shards += b.Layout.Shards()
		}
		if bytes != g.BlockBytes() || shards != g.Shards() || g.PieceBytes() < 4096 {
			t.Errorf("%s: %d bytes in %d shards, %d and %d by its blocks", g.Name, g.BlockBytes(), g.Shards(), bytes, shards)
		}
	}
}
