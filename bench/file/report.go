package file

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/kvlane/kvlane/bench"
	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/internal/present"
	"github.com/kvlane/kvlane/stream/copy/measure"
)

// Format is the version of Report's JSON form, and Kind what tells it from those of other benchmarks.
const (
	Format = 1
	Kind   = "kvlane bench file"
)

// Report is what a run measured, and on what. GBps are 1e9 bytes a second.
type Report struct {
	Kind    string          `json:"kind"`
	Format  int             `json:"format"`
	Machine bench.Facts     `json:"machine"`
	Setup   Setup           `json:"setup"`
	Points  []Point         `json:"points"`
	Missing []bench.Missing `json:"missing"`
	// LeftOut are places that the budget was too short for. Incomplete says why the run ended before its end, if it did.
	LeftOut    []string `json:"left_out,omitempty"`
	Incomplete string   `json:"incomplete,omitempty"`
}

// Setup is what the run was asked for, with the defaults filled in.
type Setup struct {
	FileSystem    string  `json:"file_system"`
	Bytes         int64   `json:"bytes"` // of a scratch file
	Sizes         []int64 `json:"sizes"`
	BudgetSeconds float64 `json:"budget_seconds"`
	Seed          uint64  `json:"seed"`
	// CuFile is how cuFile carried the scratch files; nil where it did not.
	CuFile *CuFileMode `json:"cufile,omitempty"`
}

// CuFileMode says whether the device reached files itself, by GPUDirect Storage, or in cuFile's compatibility mode, through memory of the
// host, and why.
type CuFileMode struct {
	GDS    bool   `json:"gds"`
	Reason string `json:"reason"`
}

func (m *CuFileMode) String() string {
	if m.GDS {
		return "GPUDirect Storage: " + m.Reason
	}
	return "compatibility mode: " + m.Reason
}

// Place is where contenders are compared.
type Place struct {
	Work  Work  `json:"work"`
	From  From  `json:"from"`
	Order Order `json:"order"`
	Size  int64 `json:"block_bytes"`
}

// String names the place.
func (p Place) String() string {
	return fmt.Sprintf("%s %s, %s, blocks of %s", p.From, p.Work, p.Order, bench.BytesText(p.Size))
}

// Point is what one contender did at a place. Times are of batches.
type Point struct {
	Place
	Name      string  `json:"name"`
	Raw       bool    `json:"raw"` // the device itself, and no path of kvlane
	End       End     `json:"end"`
	By        string  `json:"by"` // the path that the last batch went
	Blocks    int     `json:"blocks"`
	Bytes     int64   `json:"bytes"` // of a batch
	Reps      int     `json:"reps"`
	GBps      float64 `json:"gbps"` // by the median time; Low and High by the three-quarter and the quarter quantile
	LowGBps   float64 `json:"low_gbps"`
	HighGBps  float64 `json:"high_gbps"`
	P50Micros float64 `json:"p50_us"`
	P99Micros float64 `json:"p99_us"`
	// RawGBps is the best of the raw ones at the place, RawName which that was, and PercentOfRaw GBps over it.
	RawGBps      float64 `json:"raw_gbps"`
	RawName      string  `json:"raw_name"`
	PercentOfRaw float64 `json:"percent_of_raw"`
}

func newReport(o *Options) *Report {
	facts := device.Info{Name: "none, plain memory of the host", Driver: "none", DriverVersion: "none"}
	if o.Device != nil {
		facts = o.Device.Info()
	}
	return &Report{
		Kind: Kind, Format: Format, Machine: bench.NewFacts(facts, o.Began), Points: []Point{}, Missing: []bench.Missing{},
		Setup: Setup{FileSystem: fileSystem(o.Dir), Bytes: o.Bytes, Sizes: o.Sizes, BudgetSeconds: o.Budget.Seconds(), Seed: o.Seed},
	}
}

func (r *Report) miss(name string, why error) {
	r.Missing = append(r.Missing, bench.Missing{Path: name, Reason: why.Error()})
}

// add adds what was measured at a place.
func (r *Report) add(at Place, entrants []*entrant, blocks int) {
	first, best := len(r.Points), Point{}
	for _, e := range entrants {
		p := Point{Place: at, Name: e.name, Raw: e.raw, End: e.end, By: e.by, Blocks: blocks, Bytes: int64(blocks) * at.Size, Reps: len(e.walls)}
		rate := func(q float64) float64 { return float64(p.Bytes) / max(measure.Quantile(e.walls, q), 1e-3) / 1e3 }
		p.GBps, p.LowGBps, p.HighGBps = rate(0.5), rate(0.75), rate(0.25)
		p.P50Micros, p.P99Micros = measure.Median(e.walls), measure.Quantile(e.walls, 0.99)
		if p.Raw && p.GBps > best.GBps {
			best = p
		}
		r.Points = append(r.Points, p)
	}
	for i := first; i < len(r.Points); i++ {
		p := &r.Points[i]
		p.RawGBps, p.RawName = best.GBps, best.Name
		p.PercentOfRaw = 100 * p.GBps / max(best.GBps, 1e-9)
	}
}

// Best reports whether the point is the raw one that others are compared with.
func (p *Point) Best() bool { return p.Raw && p.Name == p.RawName }

// WriteText writes the report for people: of the raw ones the best. JSON has all.
func (r *Report) WriteText(w io.Writer) error {
	p := present.NewPage(present.ScreenOf(w))
	h := bench.Head{Incomplete: r.Incomplete, Missing: slices.Clone(r.Missing)}
	h.LeftOut(r.LeftOut, r.Setup.BudgetSeconds)
	if r.Machine.Simulated {
		h.Notes = []string{"SIMULATED: the device is; the files and the host's memory are not."}
	}
	h.Print(p, r.verdict())
	t := &present.Table{Prose: true}
	r.Machine.Rows(t)
	t.Row("files", fmt.Sprintf("%s each, on %s; about %.0f s in all, by turns; medians; seed %d",
		bench.BytesText(r.Setup.Bytes), present.Name(r.Setup.FileSystem), r.Setup.BudgetSeconds, r.Setup.Seed))
	if r.Setup.CuFile != nil {
		t.Row("cuFile", r.Setup.CuFile.String())
	}
	p.Table(t)
	for i := range r.Points {
		at := &r.Points[i]
		if i == 0 || !at.sameTable(&r.Points[i-1]) {
			p.Heading("%s %s, %s", titles[at.From], at.Work, at.Order)
			p.Table(r.table(at))
		}
	}
	p.Define("raw", "the device itself: the best of pread and pwrite by threads and of io_uring by depths, by O_DIRECT; of reads from the page cache, buffered")
	p.Define("cold", "by O_DIRECT, or of a file that the operating system was told to drop before the batch")
	p.Define("p50, p99", "µs a batch, of so many blocks")
	return p.Write(w)
}

// verdict says what kvlane's fastest path reaches of each kind of work, whose files are cold.
func (r *Report) verdict() string {
	var texts []string
	for _, w := range []Work{Read, Write} {
		var best *Point
		for i := range r.Points {
			if p := &r.Points[i]; p.Work == w && p.From == Cold && !p.Raw && (best == nil || p.GBps > best.GBps) {
				best = p
			}
		}
		if best != nil {
			texts = append(texts, fmt.Sprintf("cold %ss of up to %s GB/s (%.0f%% of the raw device) by %s in blocks of %s", w, present.Rate(best.GBps), best.PercentOfRaw,
				best.Name, bench.BytesText(best.Size)))
		}
	}
	if len(texts) == 0 {
		return "Every byte right in " + present.Things(int64(len(r.Points)), "point") + "."
	}
	return "Every byte right: " + strings.Join(texts, "; ") + "."
}

var titles = map[From]string{Cold: "Cold", PageCache: "From the page cache:"}

func (p *Point) sameTable(q *Point) bool {
	return p.Work == q.Work && p.From == q.From && p.Order == q.Order
}

// table returns the points at the places of first, of all sizes.
func (r *Report) table(first *Point) *present.Table {
	t := &present.Table{Head: []string{"block", "blocks", "path", "end", "GB/s", "% of raw", "p50", "p99", "went by"}, Keys: 4, Right: "rr  rrrr"}
	for i := range r.Points {
		p := &r.Points[i]
		if !p.sameTable(first) || p.Raw && !p.Best() {
			continue
		}
		name := p.Name
		if p.Raw {
			name = "raw: " + name
		}
		t.Row(bench.BytesText(p.Size), strconv.Itoa(p.Blocks), name, string(p.End), present.Rate(p.GBps), fmt.Sprintf("%.0f", p.PercentOfRaw),
			present.Rate(p.P50Micros), present.Rate(p.P99Micros), p.By)
	}
	return t
}
