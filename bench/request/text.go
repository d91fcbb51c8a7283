package request

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/kvlane/kvlane/bench"
	"github.com/kvlane/kvlane/internal/present"
)

const (
	simulatedNote = "SIMULATED: only ratios of these figures have a meaning."
	stillNote     = "STILL: the device completed copies without copying, and no byte was verified; CPU time and allocations are those of the host."
)

// WriteText writes the report as text.
func (r *Report) WriteText(w io.Writer) error {
	p := present.NewPage(present.ScreenOf(w))
	r.head(p)
	for _, name := range r.Setup.Geometries {
		r.tables(p, name)
		r.arrivals(p, name)
	}
	r.printProductCost(p)
	return p.Write(w)
}

func (r *Report) head(p *present.Page) {
	s := &r.Setup
	h := bench.Head{Incomplete: r.Incomplete}
	if r.Machine.Simulated {
		h.Notes = append(h.Notes, simulatedNote)
	}
	if s.Still {
		h.Notes = append(h.Notes, stillNote)
	}
	h.Notes = append(h.Notes, r.Notes...)
	for _, what := range r.LeftOut {
		place, why, _ := strings.Cut(what, ": ")
		h.Missing = append(h.Missing, bench.Missing{Path: place, Reason: why})
	}
	h.Print(p, r.verdict())
	t := &present.Table{Prose: true}
	r.Machine.Rows(t)
	if r.Version != "" {
		t.Row("kvlane", present.Name(r.Version))
	}
	t.Row("setup", fmt.Sprintf("up to %s at a time, about %.0f s in all, interleaved; medians; seed %d", bench.BytesText(s.Bytes), s.BudgetSeconds, s.Seed))
	policies := fmt.Sprintf("loads and dumps under the %s policy", s.LoadPolicy)
	if s.LoadPolicy != s.DumpPolicy {
		policies = fmt.Sprintf("loads under the %s policy, dumps under the %s policy", s.LoadPolicy, s.DumpPolicy)
	}
	t.Row("engine", cmp.Or(s.Engine, "all options are the default")+"; "+policies)
	t.Row("C, GB/s", r.Reference.Text())
	p.Table(t)
	bench.DefineC(p, s.LargeBytes)
}

// verdict returns the times of a load and a dump: for the first geometry, the fewest concurrent
// requests, whole requests if possible, and the most blocks.
func (r *Report) verdict() string {
	var texts []string
	for _, w := range []Work{Load, Dump} {
		var best *Point
		for i := range r.Points {
			p := &r.Points[i]
			if p.Work != w || p.Geometry != r.Points[0].Geometry {
				continue
			}
			if best == nil || cmp.Or(cmp.Compare(best.Requests, p.Requests), cmp.Compare(p.form(), best.form()), cmp.Compare(p.Blocks, best.Blocks)) > 0 {
				best = p
			}
		}
		if best != nil {
			texts = append(texts, fmt.Sprintf("a %s of %s (%s) takes %s, p99 %s: %s GB/s (%.0f%% of C)", w, present.Things(int64(best.Blocks), "block"),
				present.Bytes(int64(best.Blocks)*best.BlockBytes), present.Micros(best.P50Micros), present.Micros(best.P99Micros), present.Rate(best.GBps), best.PercentOfC))
		}
	}
	switch {
	case len(texts) == 0:
		return present.Things(int64(len(r.Points)), "point") + " measured."
	case r.Setup.Still:
		return "No byte was copied; " + strings.Join(texts, "; ") + "."
	}
	return "Every byte correct; " + strings.Join(texts, "; ") + "."
}

var workTexts = map[Work]string{
	Load: "loads, from the call of LeasePrefix until all is verified in pages",
	Dump: "dumps, from the call of Dump until the pages may be reused",
	Both: "loads and dumps begun at the same time",
}

// tables writes the points of a geometry in one table for each kind of work.
func (r *Report) tables(p *present.Page, geometry string) {
	for _, w := range []Work{Load, Dump, Both} {
		t := &present.Table{
			Head: []string{"requests", "form", "hits", "GB/s", "% of C", "raw GB/s", "p50", "p99", "raw", "slowest", "CPU", "allocs", "path"},
			Keys: 3, Right: "   rrrrrrrrr rrr",
		}
		switch w {
		case Dump:
			t.Head = append(t.Head, "durable p50", "durable p99")
		case Both:
			t.Head = append(t.Head, "dumps p50", "dumps p99", "loads")
		case Load:
		}
		var first *Point
		for i := range r.Points {
			at := &r.Points[i]
			if at.Geometry != geometry || at.Work != w {
				continue
			}
			first = cmp.Or(first, at)
			t.Row(at.row()...)
		}
		if first == nil {
			continue
		}
		p.Heading("%s, blocks of %s in pieces of %s: %s; times in µs", geometry, bench.BytesText(first.BlockBytes), bench.BytesText(first.PieceBytes), workTexts[w])
		p.Table(t)
		p.Define("requests", "concurrent requests, and the blocks of each")
		p.Define("raw", "the same pages in one batch of a bare stream, no checksums")
		if w == Load && slices.ContainsFunc(r.Points, func(at Point) bool { return at.By != "" }) {
			p.Define("direct, pinned, raw", "files read by cuFile, through pinned memory, and by pread without a store and unverified")
		}
		p.Define("slowest", "of requests at the same time, the p99 over repetitions: a multiple of the time of all their bytes at C")
		p.Define("CPU", "µs a block, of the whole process")
		p.Define("allocs", "allocations a block")
		switch w {
		case Dump:
			p.Define("durable", "until the blocks are")
		case Both:
			p.Define("GB/s", "of both, loads and dumps begun at the same time: in sum; p50 and p99 are of the loads")
			p.Define("loads", "p50 as a multiple of that of as many loads without dumps")
		case Load:
		}
	}
}

func (p *Point) row() []string {
	row := []string{
		p.requests(), string(p.form()), cmp.Or(p.hits(), "-"),
		present.Rate(p.GBps), fmt.Sprintf("%.0f", p.PercentOfC), present.Rate(p.RawGBps), present.Rate(p.P50Micros), present.Rate(p.P99Micros), present.Rate(p.RawMicros),
		times(p.SlowestOverFair), present.Rate(p.CPUMicrosPerBlock), present.Rate(p.AllocsPerBlock), p.Path,
	}
	switch p.Work {
	case Dump:
		row = append(row, present.Rate(p.DurableP50Micros), present.Rate(p.DurableP99Micros))
	case Both:
		row = append(row, present.Rate(p.DumpP50Micros), present.Rate(p.DumpP99Micros), times(p.LoadsOverAlone))
	case Load:
	}
	return row
}

// hits returns a text with the location of the blocks to load and the method of reading files.
func (p *Place) hits() string {
	if p.By == "" {
		return string(p.Hits)
	}
	return string(p.Hits) + ", " + string(p.By)
}

// requests returns a text with the number of requests and their blocks.
func (p *Place) requests() string { return fmt.Sprintf("%d x %d", p.Requests, p.Blocks) }

func (p *Place) form() Form {
	if p.Layerwise {
		return Layers
	}
	return Whole
}

// times formats a ratio. Zero is a dash.
func times(v float64) string {
	if v == 0 {
		return "-"
	}
	return fmt.Sprintf("%.2f", v)
}

// arrivals writes the times until layers were loaded, as fractions of the total.
func (r *Report) arrivals(p *present.Page, geometry string) {
	t := &present.Table{Keys: 3, Right: "   " + strings.Repeat("r", 8)}
	for i := range r.Points {
		of := &r.Points[i]
		n := len(of.LayersMicros)
		if of.Geometry != geometry || n == 0 {
			continue
		}
		at := []int{0, 1, n / 4, n / 2, 3 * n / 4, n - 1}
		at = slices.DeleteFunc(at, func(k int) bool { return k >= n })
		slices.Sort(at)
		at = slices.Compact(at)
		if t.Head == nil {
			t.Head = []string{"requests", "work", "hits", "leased", "begun"}
			for _, k := range at {
				t.Head = append(t.Head, fmt.Sprintf("layer %d", k))
			}
		}
		row := []string{of.requests(), string(of.Work), of.hits(), present.Rate(of.LeasedMicros), present.Rate(of.BegunMicros)}
		for _, k := range at {
			row = append(row, fmt.Sprintf("%s (%.0f%%)", present.Rate(of.LayersMicros[k]), 100*of.LayersMicros[k]/max(of.LayersMicros[n-1], 1e-3)))
		}
		t.Row(row...)
	}
	if t.Head != nil {
		p.Heading("%s, loads layer by layer: µs at the median until layers had arrived (%% of the last)", geometry)
		p.Table(t)
		p.Define("leased, begun", "when LeasePrefix and Load had returned")
	}
}

func (r *Report) printProductCost(p *present.Page) {
	if r.ProductCost == nil {
		return
	}
	p.Heading("Beside %s: %% of the product's rate that is lost, with its 95%% interval over %d pairs of windows", r.ProductCost.What, r.ProductCost.Pairs)
	t := &present.Table{Head: []string{"geometry", "requests", "work", "form", "GB/s", "lost, %", "from", "to", "alone", "beside"}, Keys: 4, Right: "    rrrrrr"}
	percent := func(share float64) string { return fmt.Sprintf("%.1f", 100*share) }
	for i := range r.ProductCost.Losses {
		l := &r.ProductCost.Losses[i]
		t.Row(l.Geometry, l.requests(), string(l.Work), string(l.form()), present.Rate(l.GBps), percent(l.Loss), percent(l.Low), percent(l.High),
			fmt.Sprintf("%.0f", l.AloneTFLOPS), fmt.Sprintf("%.0f", l.BesideTFLOPS))
	}
	p.Table(t)
	p.Define("alone, beside", "the product's TFLOP/s")
}

// Compare compares the points of a report with those of an earlier one. noise is the minimum
// relative change that is significant.
func (r *Report) Compare(earlier *Report, noise float64) *bench.Comparison {
	c := r.plain().Compare(earlier.plain(), noise)
	for _, d := range []struct{ what, was, is string }{
		{"the engine's options", earlier.Setup.Engine, r.Setup.Engine},
		{"policies", earlier.Setup.LoadPolicy + " and " + earlier.Setup.DumpPolicy, r.Setup.LoadPolicy + " and " + r.Setup.DumpPolicy},
	} {
		if d.was != d.is && d.was != " and " { // old reports do not have the field
			c.Notes = append(c.Notes, fmt.Sprintf("%s were %q and are %q", d.what, d.was, d.is))
		}
	}
	return c
}

// plain converts the report to a report of copies for a comparison.
func (r *Report) plain() *bench.Report {
	out := &bench.Report{Machine: r.Machine, Reference: r.Reference, Incomplete: r.Incomplete}
	for i := range r.Points {
		p := &r.Points[i]
		q := bench.Point{
			Path: fmt.Sprintf("%s %s", p.Geometry, p.form()), Cell: bench.Cell{Size: p.BlockBytes, Count: p.Blocks},
			Direction: bench.Direction(p.Work), Layout: bench.Layout(fmt.Sprintf("%d at a time", p.Requests)),
			GBps: p.GBps, LowGBps: p.LowGBps, HighGBps: p.HighGBps,
		}
		if p.Hits != "" {
			q.Layout += bench.Layout(", hits in " + p.hits())
		}
		out.Points = append(out.Points, q)
	}
	return out
}
