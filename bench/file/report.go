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
	"github.com/kvlane/kvlane/stream"
	"github.com/kvlane/kvlane/stream/copy/measure"
)

// Format is the version of Report's JSON form. Kind distinguishes it from reports of other
// benchmarks.
const (
	Format = 1
	Kind   = "kvlane bench file"
)

// Report is the result of a run. GBps fields are in units of 1e9 bytes per second.
type Report struct {
	Kind    string      `json:"kind"`
	Format  int         `json:"format"`
	Machine bench.Facts `json:"machine"`
	Setup   Setup       `json:"setup"`
	Points  []Point     `json:"points"`
	// Reads compares the paths from a file to device memory. It is empty without a device.
	Reads   []Reads         `json:"reads,omitempty"`
	Missing []bench.Missing `json:"missing"`
	// LeftOut lists places that did not fit the budget. Incomplete is the reason if the run ended
	// early.
	LeftOut    []string `json:"left_out,omitempty"`
	Incomplete string   `json:"incomplete,omitempty"`
}

// Setup has the options of the run, including defaults.
type Setup struct {
	FileSystem    string  `json:"file_system"`
	Bytes         int64   `json:"bytes"` // length of a scratch file
	Sizes         []int64 `json:"sizes"`
	BudgetSeconds float64 `json:"budget_seconds"`
	Seed          uint64  `json:"seed"`
	// CuFile is the mode in which cuFile accessed the scratch files, or nil.
	CuFile *CuFileMode `json:"cufile,omitempty"`
}

// CuFileMode reports whether cuFile used GPUDirect Storage, or its compatibility mode through host
// memory, and the reason.
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

// Place is a combination of parameters for which contenders are compared.
type Place struct {
	Work  Work  `json:"work"`
	From  From  `json:"from"`
	Order Order `json:"order"`
	Size  int64 `json:"block_bytes"`
}

// String returns the name of the place.
func (p Place) String() string {
	return fmt.Sprintf("%s %s, %s, blocks of %s", p.From, p.Work, p.Order, bench.BytesText(p.Size))
}

// Point is the result of one contender at one place. Times are durations of batches.
type Point struct {
	Place
	Name   string `json:"name"`
	Raw    bool   `json:"raw"` // raw access without a stream
	End    End    `json:"end"`
	By     string `json:"by"` // path of the last batch
	Blocks int    `json:"blocks"`
	Bytes  int64  `json:"bytes"` // bytes in a batch
	Reps   int    `json:"reps"`
	// GBps is the rate at the median time. LowGBps and HighGBps are the rates at the 75% and 25%
	// quantiles of the time.
	GBps      float64 `json:"gbps"`
	LowGBps   float64 `json:"low_gbps"`
	HighGBps  float64 `json:"high_gbps"`
	P50Micros float64 `json:"p50_us"`
	P99Micros float64 `json:"p99_us"`
	// RawGBps and RawName are the rate and the name of the best raw access at the place.
	// PercentOfRaw is GBps relative to RawGBps.
	RawGBps      float64 `json:"raw_gbps"`
	RawName      string  `json:"raw_name"`
	PercentOfRaw float64 `json:"percent_of_raw"`
}

// Reads are rates of reads at a place in GB/s. Zero: not measured.
type Reads struct {
	Place
	Direct float64 `json:"direct_gbps"` // to device memory with cuFile
	Pinned float64 `json:"pinned_gbps"` // to device memory on the best path through pinned memory
	Raw    float64 `json:"raw_gbps"`    // to host memory by the best raw access
}

// compareReads sets Reads.
func (r *Report) compareReads() {
	for i := range r.Points {
		p := &r.Points[i]
		if p.Work != Read || p.End != Device {
			continue
		}
		k := slices.IndexFunc(r.Reads, func(c Reads) bool { return c.Place == p.Place })
		if k < 0 {
			k = len(r.Reads)
			r.Reads = append(r.Reads, Reads{Place: p.Place, Raw: p.RawGBps})
		}
		rate := &r.Reads[k].Pinned
		if p.By == stream.PathCuFile.String() {
			rate = &r.Reads[k].Direct
		}
		*rate = max(*rate, p.GBps)
	}
}

func newReport(o *Options) *Report {
	facts := device.Info{Name: "none, pageable host memory", Driver: "none", DriverVersion: "none"}
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

// add appends the points of a place.
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

// Best reports whether the point is the best raw access at its place.
func (p *Point) Best() bool { return p.Raw && p.Name == p.RawName }

// WriteText writes the report as text. It omits raw points except the best one of each place.
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
	t.Row("files", fmt.Sprintf("%s each, on %s; about %.0f s in all, interleaved; medians; seed %d",
		bench.BytesText(r.Setup.Bytes), present.Name(r.Setup.FileSystem), r.Setup.BudgetSeconds, r.Setup.Seed))
	if r.Setup.CuFile != nil {
		t.Row("cuFile", r.Setup.CuFile.String())
	}
	p.Table(t)
	r.printReads(p)
	for i := range r.Points {
		at := &r.Points[i]
		if i == 0 || !at.sameTable(&r.Points[i-1]) {
			p.Heading("%s %s, %s", titles[at.From], at.Work, at.Order)
			p.Table(r.table(at))
		}
	}
	p.Define("raw", "the device itself: the best of pread and pwrite by threads and of io_uring by depths, by O_DIRECT; of reads from the page cache, buffered")
	p.Define("cold", "by O_DIRECT, or of a file that was dropped from the page cache before the batch")
	p.Define("p50, p99", "µs a batch, of so many blocks")
	return p.Write(w)
}

// printReads prints Reads as one table.
func (r *Report) printReads(p *present.Page) {
	if len(r.Reads) == 0 {
		return
	}
	t := &present.Table{Head: []string{"from", "order", "path"}, Keys: 3, Right: "   " + strings.Repeat("r", len(r.Setup.Sizes))}
	for _, n := range r.Setup.Sizes {
		t.Head = append(t.Head, bench.BytesText(n))
	}
	rows := make(map[string]int) // index of the first of three rows, by From and Order
	for i := range r.Reads {
		c := &r.Reads[i]
		key := string(c.From) + string(c.Order)
		first, seen := rows[key]
		if !seen {
			first, rows[key] = len(t.Rows), len(t.Rows)
			for _, name := range []string{"direct", "pinned", "raw"} {
				t.Row(append([]string{string(c.From), string(c.Order), name}, slices.Repeat([]string{"-"}, len(r.Setup.Sizes))...)...)
			}
		}
		for k, gbps := range []float64{c.Direct, c.Pinned, c.Raw} {
			if gbps > 0 {
				t.Rows[first+k][3+slices.Index(r.Setup.Sizes, c.Size)] = present.Rate(gbps)
			}
		}
	}
	p.Heading("Reads to the device's memory: GB/s by size of a block")
	p.Table(t)
	p.Define("direct", "by cuFile")
	p.Define("pinned", "through pinned memory, by the best path")
}

// verdict returns the best rate of a stream for cold reads and for writes.
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
		return "Every byte correct in " + present.Things(int64(len(r.Points)), "point") + "."
	}
	return "Every byte correct: " + strings.Join(texts, "; ") + "."
}

var titles = map[From]string{Cold: "Cold", PageCache: "From the page cache:"}

func (p *Point) sameTable(q *Point) bool {
	return p.Work == q.Work && p.From == q.From && p.Order == q.Order
}

// table returns the points that belong in one table with first.
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
