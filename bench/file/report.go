package file

import (
	"encoding/csv"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/kvlane/kvlane/bench"
	"github.com/kvlane/kvlane/device"
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

// WriteText writes the report for people, as tables in Markdown: of the raw ones the best. JSON and CSV have all.
func (r *Report) WriteText(w io.Writer) error {
	var b strings.Builder
	bench.WriteIncomplete(&b, r.Incomplete)
	if r.Machine.Simulated {
		b.WriteString("SIMULATED: the device is; the files and the host's memory are not.\n\n")
	}
	r.Machine.WriteText(&b)
	fmt.Fprintf(&b, "files      %s each, on %s; about %.0f s in all, by turns; medians; seed %d\n",
		bench.BytesText(r.Setup.Bytes), r.Setup.FileSystem, r.Setup.BudgetSeconds, r.Setup.Seed)
	b.WriteString("raw        the best of pread and pwrite by threads and of io_uring by depths, by O_DIRECT; of reads from the page cache, buffered.\n" +
		"           cold: O_DIRECT, or a file that the operating system was told to drop before the batch. Times are of batches. All bytes were compared.\n")
	for i := range r.Points {
		p := &r.Points[i]
		if i == 0 || !p.sameTable(&r.Points[i-1]) {
			fmt.Fprintf(&b, "\n%s %s, %s\n\n", titles[p.From], p.Work, p.Order)
			bench.WriteTable(&b, r.table(p))
		}
	}
	for _, m := range r.Missing {
		fmt.Fprintf(&b, "\nnot measured: %s: %s\n", m.Path, m.Reason)
	}
	bench.WriteLeftOut(&b, r.LeftOut, r.Setup.BudgetSeconds)
	if _, err := io.WriteString(w, b.String()); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}

var titles = map[From]string{Cold: "Cold", PageCache: "From the page cache:"}

func (p *Point) sameTable(q *Point) bool {
	return p.Work == q.Work && p.From == q.From && p.Order == q.Order
}

// table returns the rows of the points at the places of first, of all sizes.
func (r *Report) table(first *Point) [][]string {
	rows := [][]string{{"block", "blocks", "path", "end", "GB/s", "% of raw", "p50 us", "p99", "went by"}}
	for i := range r.Points {
		p := &r.Points[i]
		if !p.sameTable(first) || p.Raw && !p.Best() {
			continue
		}
		name := p.Name
		if p.Raw {
			name = "raw: " + name
		}
		rows = append(rows, []string{
			bench.BytesText(p.Size), strconv.Itoa(p.Blocks), name, string(p.End), fmt.Sprintf("%.2f", p.GBps), fmt.Sprintf("%.0f", p.PercentOfRaw),
			fmt.Sprintf("%.0f", p.P50Micros), fmt.Sprintf("%.0f", p.P99Micros), p.By,
		})
	}
	return rows
}

// WriteCSV writes all points, one a line, with a header line.
func (r *Report) WriteCSV(w io.Writer) error {
	rows := [][]string{{
		"device", "simulated", "file_system", "work", "from", "order", "block_bytes", "path", "raw", "end", "by", "blocks", "bytes", "reps",
		"gbps", "low_gbps", "high_gbps", "p50_us", "p99_us", "raw_gbps", "raw_name", "percent_of_raw",
	}}
	float := func(v float64) string { return strconv.FormatFloat(v, 'f', 3, 64) }
	for i := range r.Points {
		p := &r.Points[i]
		rows = append(rows, slices.Concat([]string{
			r.Machine.Device, strconv.FormatBool(r.Machine.Simulated), r.Setup.FileSystem, string(p.Work), string(p.From), string(p.Order),
			strconv.FormatInt(p.Size, 10), p.Name, strconv.FormatBool(p.Raw), string(p.End), p.By, strconv.Itoa(p.Blocks), strconv.FormatInt(p.Bytes, 10), strconv.Itoa(p.Reps),
		}, []string{
			float(p.GBps), float(p.LowGBps), float(p.HighGBps), float(p.P50Micros), float(p.P99Micros), float(p.RawGBps), p.RawName, float(p.PercentOfRaw),
		}))
	}
	if err := csv.NewWriter(w).WriteAll(rows); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}
