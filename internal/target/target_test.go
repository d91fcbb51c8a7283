package target

import (
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvlane/kvlane/bench"
	"github.com/kvlane/kvlane/internal/present/presenttest"
)

var rewrite = flag.Bool("rewrite", false, "rewrite the golden files")

// good is a report that meets every target, by a little.
func good() *bench.Report {
	r := &bench.Report{Machine: bench.Facts{Device: "NVIDIA H100 80GB HBM3"}}
	for _, size := range []int64{256, 1 << 10, 4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10, 256 << 10, 1 << 20} {
		for _, l := range []bench.Layout{bench.HostContiguous, bench.HostScattered} {
			for _, d := range []bench.Direction{bench.ToDevice, bench.ToHost} {
				auto := point(bench.Auto, bench.Lists, size, 1000, d, l, 54, 55)
				auto.Traveled = "staged"
				r.Points = append(r.Points, auto, point("kernel", bench.Lists, size, 1000, d, l, 55, 55),
					point("one-copy-each", bench.Lists, size, 1000, d, l, 5, 55))
			}
		}
	}
	for _, d := range []bench.Direction{bench.ToDevice, bench.ToHost} {
		p := point(bench.Auto, bench.Lists, 4<<10, 1, d, bench.HostScattered, 1, 55)
		p.P50Micros, p.P99Micros = 13, 26
		r.Points = append(r.Points, p, point("one-copy-each", bench.Lists, 4<<10, 1, d, bench.HostScattered, 1, 55))
		for _, f := range []bench.Form{bench.Lists, bench.Pages, bench.PagesSummed} {
			p := point(bench.Auto, f, bench.SubmitBytes, bench.SubmitBlocks, d, bench.HostScattered, 50, 55)
			p.PostP50Micros, p.AllocsPerBlock = 550, 0.0007
			if f != bench.Lists {
				p.PostP50Micros = 95
			}
			if p.Summed = f == bench.PagesSummed; p.Summed {
				p.GBps, p.TurnGBps = 49, []float64{49, 49, 49}
			}
			r.Forms = append(r.Forms, p)
		}
	}
	r.Product = &bench.ProductFacts{What: "products", AloneTFLOPS: 735, Counts: true, BatchBytes: 128 << 20, Layout: bench.HostContiguous, Losses: []bench.Loss{
		{Path: "kernel", Traveled: "kernel", Direction: bench.ToDevice, GBps: 10, Loss: 0.2, Low: 0.1, High: 0.3},
		{Path: "auto:background", Traveled: "staged", Direction: bench.ToDevice, GBps: 41, Loss: 0.009, Low: -0.002, High: 0.02},
		{Path: "auto:background", Traveled: "staged", Direction: bench.ToHost, GBps: 43, Loss: 0.01, Low: 0.001, High: 0.019},
	}}
	r.Peers = &bench.PeerReport{Device: "another"}
	for _, d := range []bench.Direction{bench.ToDevice, bench.ToHost} {
		for _, size := range []int64{4 << 10, 1 << 20} {
			r.Peers.Points = append(r.Peers.Points, point(bench.Auto, bench.Lists, size, 1000, d, bench.BothScattered, 360, 396),
				point(bench.Auto, bench.Lists, size, 1000, d, bench.BothContiguous, 390, 396))
		}
	}
	return r
}

func point(path string, f bench.Form, size int64, count int, d bench.Direction, l bench.Layout, gbps, large float64) bench.Point {
	p := bench.Point{
		Path: path, Baseline: path == "one-copy-each", Form: f, Cell: bench.Cell{Size: size, Count: count}, Blocks: count, Direction: d, Layout: l,
		GBps: gbps, TurnGBps: []float64{gbps, gbps, gbps}, LargeGBps: large, Share: gbps / large,
	}
	if !p.Baseline {
		p.Traveled = "kernel"
	}
	return p
}

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *rewrite {
		if err := errors.Join(os.MkdirAll("testdata", 0o755), os.WriteFile(file, got, 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s differs, -want +got; go test -rewrite makes it anew:\n%s", file, diff)
	}
}

func TestWriteText(t *testing.T) {
	lacking := good()
	lacking.Machine.Device, lacking.Product, lacking.Peers, lacking.Forms = "NVIDIA L4", nil, nil, nil
	simulated := &bench.Report{Machine: bench.Facts{Device: "simulated GPU", Simulated: true}}
	for name, r := range map[string]*bench.Report{"good": good(), "lacking": lacking, "simulated": simulated} {
		t.Run(name, func(t *testing.T) {
			presenttest.Check(t, name, *rewrite, Judge(r).WriteText)
		})
	}
}

func TestJSON(t *testing.T) {
	b, err := json.MarshalIndent(Judge(good()), "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "good.json", b)
	var back Judgment
	if err := json.Unmarshal(b, &back); err != nil || !cmp.Equal(&back, Judge(good())) {
		t.Errorf("it does not come back: %v", err)
	}
}

// byID returns the targets by name; names must differ.
func byID(t *testing.T, j *Judgment) map[string]Result {
	t.Helper()
	all := make(map[string]Result)
	for _, r := range j.Targets {
		if _, ok := all[r.ID]; ok {
			t.Errorf("two targets are %q", r.ID)
		}
		all[r.ID] = r
	}
	return all
}

func TestEveryTargetCanBeMet(t *testing.T) {
	j := Judge(good())
	if j.Met != j.Total || j.Missed != 0 || !j.Applies || j.Total < 50 {
		t.Errorf("%d of %d met, %d missed", j.Met, j.Total, j.Missed)
	}
	for id, r := range byID(t, j) {
		if r.State != Met {
			t.Errorf("%s: %+v", id, r)
		}
	}
}

// Each spoiled figure misses its own target and no other.
func TestEveryTargetCanBeMissed(t *testing.T) {
	points := func(r *bench.Report, want func(*bench.Point) bool, spoil func(*bench.Point)) {
		n := 0
		for _, list := range [][]bench.Point{r.Points, r.Forms, r.Peers.Points} {
			for i := range list {
				if want(&list[i]) {
					spoil(&list[i])
					n++
				}
			}
		}
		if n == 0 {
			t.Error("nothing is spoiled")
		}
	}
	at := func(path string, size int64, d bench.Direction, l bench.Layout) func(*bench.Point) bool {
		return func(p *bench.Point) bool {
			return p.Path == path && p.Size == size && p.Direction == d && p.Layout == l && (p.Form == bench.Lists)
		}
	}
	for id, spoil := range map[string]func(*bench.Report){
		"share/scattered/d2h/4 KiB": func(r *bench.Report) {
			points(r, at(bench.Auto, 4<<10, bench.ToHost, bench.HostScattered), func(p *bench.Point) { p.Share = 0.929 })
		},
		"share/contiguous/h2d/256 B": func(r *bench.Report) {
			points(r, at(bench.Auto, 256, bench.ToDevice, bench.HostContiguous), func(p *bench.Point) { p.Share = 0.59 })
		},
		"regret/best-path": func(r *bench.Report) {
			points(r, at("kernel", 1<<20, bench.ToHost, bench.HostContiguous), func(p *bench.Point) { p.GBps, p.TurnGBps = 70, []float64{70, 70, 70} })
		},
		"regret/baselines": func(r *bench.Report) {
			points(r, at("one-copy-each", 1<<20, bench.ToHost, bench.HostContiguous), func(p *bench.Point) { p.GBps, p.TurnGBps = 57, []float64{57, 57, 57} })
		},
		"latency/1/h2d": func(r *bench.Report) {
			points(r, func(p *bench.Point) bool {
				return p.Path == bench.Auto && p.Count == 1 && p.Direction == bench.ToDevice
			}, func(p *bench.Point) { p.P50Micros = 14.1 })
		},
		"beside/moved/d2h": func(r *bench.Report) { r.Product.Losses[2].GBps = 39 },
		"beside/lost/h2d":  func(r *bench.Report) { r.Product.Losses[1].High = 0.031 },
		"checksums/h2d": func(r *bench.Report) {
			points(r, func(p *bench.Point) bool { return p.Summed && p.Direction == bench.ToDevice }, func(p *bench.Point) { p.GBps, p.TurnGBps = 48, []float64{48, 48, 48} })
		},
		"submit/lists": func(r *bench.Report) { r.Forms[0].PostP50Micros = 601 },
		"submit/pages": func(r *bench.Report) { r.Forms[4].PostP50Micros = 101 },
		"submit/allocations": func(r *bench.Report) {
			r.Forms[1].AllocsPerBlock = 1
		},
		"peers/scattered/4 KiB/pull": func(r *bench.Report) {
			points(r, at(bench.Auto, 4<<10, bench.ToDevice, bench.BothScattered), func(p *bench.Point) { p.GBps = 289 })
		},
		"peers/scattered/1 MiB/push": func(r *bench.Report) {
			points(r, at(bench.Auto, 1<<20, bench.ToHost, bench.BothScattered), func(p *bench.Point) { p.Share = 0.89 })
		},
		"peers/contiguous/1 MiB/pull": func(r *bench.Report) {
			points(r, at(bench.Auto, 1<<20, bench.ToDevice, bench.BothContiguous), func(p *bench.Point) { p.Share = 0.96 })
		},
	} {
		t.Run(id, func(t *testing.T) {
			r := good()
			spoil(r)
			for other, got := range byID(t, Judge(r)) {
				if (got.State == Missed) != (other == id) {
					t.Errorf("%s is %s: %+v", other, got.State, got)
				}
			}
		})
	}
}

// What was not measured is neither met nor missed.
func TestWhatIsNotThere(t *testing.T) {
	r := good()
	r.Product.Counts, r.Product.AloneTFLOPS = false, 500
	for i := range r.Forms {
		r.Forms[i].Summed = false
	}
	r.Peers = nil
	r.Points = r.Points[:3] // of 256 B
	j := Judge(r)
	if j.Missed != 0 || j.Met != 1+2+3 {
		t.Errorf("%d met, %d missed", j.Met, j.Missed)
	}
	for id, want := range map[string]string{
		"beside/moved/h2d": "the product reached 500 TFLOP/s alone, and should 700",
		"checksums/d2h":    "the device made no checksums",
		"latency/1/h2d":    "",
	} {
		if got := byID(t, j)[id]; got.State != NotMeasured || got.Note != want || got.Measured != 0 {
			t.Errorf("%s: %+v", id, got)
		}
	}
	if j := Judge(&bench.Report{}); j.Met+j.Missed != 0 || j.Applies {
		t.Errorf("an empty report: %+v", j)
	}
}
