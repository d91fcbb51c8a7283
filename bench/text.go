package bench

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/kvlane/kvlane/internal/present"
)

const simulatedNote = "SIMULATED: the figures describe the simulated device, not hardware."

var directionTexts = map[Direction]string{ToDevice: "host to device", ToHost: "device to host", Both: "both ways at once"}

// WriteText writes the report as text. The most important results come first.
func (r *Report) WriteText(w io.Writer) error {
	p := present.NewPage(present.ScreenOf(w))
	r.head(p)
	r.summary(p)
	r.few(p)
	r.nics(p)
	for _, layout := range hostLayouts {
		for _, d := range []Direction{ToDevice, ToHost, Both} {
			r.bandwidths(p, r.BySize(d, layout), fmt.Sprintf("Scattered device blocks, %s, %s", r.layoutText(layout), directionTexts[d]))
		}
	}
	r.latencies(p)
	r.planner(p)
	r.peers(p)
	return p.Write(w)
}

func (r *Report) head(p *present.Page) {
	f, s := &r.Machine, &r.Setup
	h := Head{Incomplete: r.Incomplete, Missing: slices.Clone(r.Missing)}
	h.LeftOut(r.LeftOut, s.BudgetSeconds)
	if f.Simulated {
		h.Notes = append(h.Notes, simulatedNote)
	}
	if len(r.Soft) > 0 {
		h.Notes = append(h.Notes, softNote)
	}
	h.Print(p, r.verdict())
	t := &present.Table{Prose: true}
	f.Rows(t)
	reps := present.Things(int64(s.Reps), "repetition") + " a point"
	if s.Reps == 0 {
		reps = fmt.Sprintf("about %.0f s in all, %d to %d repetitions a point", s.BudgetSeconds, minReps, maxReps)
	}
	t.Row("setup", fmt.Sprintf("up to %s in batches of up to %d blocks (%s) over %s of device memory, %s, interleaved; medians; seed %d",
		BytesText(s.Bytes), s.BatchBlocks, s.Form, BytesText(s.PoolBytes), reps, s.Seed))
	if s.Planner != "" {
		t.Row("planner", s.Planner)
	}
	if len(s.Without) > 0 {
		t.Row("without", strings.Join(s.Without, ", ")+": never the stream's own choice")
	}
	for _, n := range s.NICs {
		t.Row("nic", n)
	}
	t.Row("C, GB/s", r.Reference.Text())
	t.Row("moved", r.moved())
	p.Table(t)
	DefineC(p, s.ReferenceBytes)
	if s.DriverCall > 0 {
		p.Define(string(OneCopyEach), "baseline: a call of the driver for each block")
		p.Define(string(DriverBatch), fmt.Sprintf("baseline: calls of the driver's batched copy, of at most %d blocks", s.DriverCall))
	}
	p.Define(Auto, "the stream's own choice")
}

// headline returns the row of the automatic choice, or if there is none, of the path that is
// fastest for the largest blocks.
func (r *Report) headline(d Direction) (best Row) {
	rate := func(row Row) float64 { return row.Points[len(row.Points)-1].GBps }
	for _, l := range hostLayouts {
		for _, row := range r.BySize(d, l) {
			if row.Path == Auto {
				return row
			}
			if len(best.Points) == 0 || rate(row) > rate(best) {
				best = row
			}
		}
	}
	return best
}

// verdict returns the rates for the smallest and the largest blocks.
func (r *Report) verdict() string {
	var ways []string
	for _, d := range []Direction{ToDevice, ToHost, Both} {
		row := r.headline(d)
		n := len(row.Points)
		if n == 0 || d == Both && len(ways) > 0 {
			continue
		}
		say := func(p *Point) string {
			return fmt.Sprintf("%s GB/s (%.0f%% of C) in blocks of %s", present.Rate(p.GBps), 100*p.Share, BytesText(p.Size))
		}
		way := fmt.Sprintf("%s by %s %s", directionTexts[d], row.Path, say(&row.Points[0]))
		if n > 1 {
			way += ", " + say(&row.Points[n-1])
		}
		ways = append(ways, way)
	}
	if len(ways) == 0 {
		return "No copy of the device itself was measured."
	}
	return "Every byte correct: " + strings.Join(ways, "; ") + "."
}

// layoutText returns the name of an arrangement and the length of its slots.
func (r *Report) layoutText(l Layout) string {
	if l == HostSlots {
		return fmt.Sprintf("%s of %s", l, BytesText(r.Setup.SlotBytes))
	}
	return string(l)
}

// summary writes the rates of the automatic choice by block size.
func (r *Report) summary(p *present.Page) {
	var rows []Row
	for _, l := range hostLayouts {
		for _, d := range []Direction{ToDevice, ToHost, Both} {
			for _, row := range r.BySize(d, l) {
				if row.Path == Auto {
					row.Path = fmt.Sprintf("%s, %s", r.layoutText(l), d)
					rows = append(rows, row)
				}
			}
		}
	}
	r.bandwidths(p, rows, "The stream's own choice (auto), device blocks scattered")
}

// headlineCounts are the numbers of blocks whose latencies are shown first.
var headlineCounts = []int{1, 64}

// few writes the latencies of few blocks with automatic choice and on the fastest path.
func (r *Report) few(p *present.Page) {
	t := &present.Table{Head: []string{"blocks", "way", "auto", "by", "fastest path", "by"}, Keys: 2, Right: "  r r"}
	for _, n := range headlineCounts {
		for _, d := range []Direction{ToDevice, ToHost} {
			var auto, best *Point
			for i := range r.Points {
				switch p := &r.Points[i]; {
				case p.Cell != (Cell{latencySize, n}) || p.Direction != d || p.Layout != HostScattered:
				case p.Path == Auto:
					auto = p
				case !p.Baseline && (best == nil || p.P50Micros < best.P50Micros):
					best = p
				}
			}
			if auto != nil && best != nil {
				t.Row(auto.cell(), string(d), auto.latency(), auto.Traveled, best.latency(), best.Path)
			}
		}
	}
	if len(t.Rows) > 0 {
		p.Heading("Few blocks, host scattered, from Submit to done: µs at the median (p99)")
		p.Table(t)
	}
}

// cell returns a text with the number and size of blocks.
func (c Cell) cell() string { return fmt.Sprintf("%d x %s", c.Count, BytesText(c.Size)) }

// latency returns a text with the median and the 99% quantile of the time from Submit until done.
func (p *Point) latency() string {
	return fmt.Sprintf("%s (%s)", present.Rate(p.P50Micros), present.Rate(p.P99Micros))
}

// bandwidths writes a table with a row for each path and a column for each block size. The cells
// are "GB/s (% of C)".
func (r *Report) bandwidths(p *present.Page, rows []Row, title string) {
	grid(p, rows, title+": GB/s (% of C)", func(at *Point) string {
		if at.Blocks < at.Count {
			p.Define("*", fmt.Sprintf("fewer blocks (the JSON report has the number): too little time, or a path more than %d times slower than the fastest at this point", slowFactor))
			return at.share() + "*"
		}
		return at.share()
	})
}

// share returns a text with the rate and its percentage of a large copy.
func (p *Point) share() string { return fmt.Sprintf("%s (%.0f)", present.Rate(p.GBps), 100*p.Share) }

// grid writes a table with a row for each path and a column for each cell. Without rows it writes
// nothing.
func grid(p *present.Page, rows []Row, title string, text func(*Point) string) {
	if len(rows) == 0 {
		return
	}
	var cells []Cell
	for _, row := range rows {
		for _, p := range row.Points {
			if !slices.Contains(cells, p.Cell) {
				cells = append(cells, p.Cell)
			}
		}
	}
	slices.SortFunc(cells, compareCells)
	t := &present.Table{Head: []string{"path"}, Right: " " + strings.Repeat("r", len(cells))}
	for _, c := range cells {
		t.Head = append(t.Head, c.cell())
	}
	for _, row := range rows {
		line := []string{row.Path}
		for _, c := range cells {
			cell := ""
			if i := slices.IndexFunc(row.Points, func(p Point) bool { return p.Cell == c }); i >= 0 {
				cell = text(&row.Points[i])
			}
			line = append(line, cell)
		}
		t.Row(line...)
	}
	p.Heading("%s", title)
	p.Table(t)
}

// latencies writes p50 and p99 by count for the block size with the most counts.
func (r *Report) latencies(p *present.Page) {
	size := r.LatencySize()
	for _, d := range []Direction{ToDevice, ToHost} {
		rows := r.ByCount(size, d, HostScattered)
		if len(rows) == 0 || len(rows[0].Points) < 2 {
			continue
		}
		grid(p, rows, fmt.Sprintf("Blocks of %s from Submit to done, host scattered, %s: µs at the median (p99)", BytesText(size), directionTexts[d]), func(at *Point) string {
			if at.Blocks < at.Count { // this count was not measured
				return "*"
			}
			return at.latency()
		})
	}
}

// moved returns a text with the total number of copied bytes.
func (r *Report) moved() string {
	var moved int64
	short := 0
	points := slices.Concat(r.Points, r.Soft)
	for i := range points {
		moved += points[i].Bytes * int64(points[i].Reps)
		if points[i].Blocks < points[i].Count {
			short++
		}
	}
	text := fmt.Sprintf("%s in %s", present.Bytes(moved), present.Things(int64(len(points)), "point"))
	if short > 0 {
		text += fmt.Sprintf(", %d of them (*) with fewer blocks than in the column's head", short)
	}
	return text
}
