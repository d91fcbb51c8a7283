package request

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/kvlane/kvlane/bench"
)

const (
	simulatedNote = "SIMULATED: no figure of it means anything but a ratio."
	stillNote     = "STILL: the device completed copies without making them, and nothing was verified: CPU time and allocations are the host's."
)

// WriteText writes the report for people, as tables in Markdown.
func (r *Report) WriteText(w io.Writer) error {
	var b strings.Builder
	bench.WriteIncomplete(&b, r.Incomplete)
	r.head(&b)
	for _, name := range r.Setup.Geometries {
		r.table(&b, name)
		r.arrivals(&b, name)
		r.models(&b, name)
	}
	r.beside(&b)
	for _, what := range r.LeftOut {
		fmt.Fprintf(&b, "\nnot measured: %s\n", what)
	}
	for _, n := range r.Notes {
		fmt.Fprintf(&b, "\nnote: %s\n", n)
	}
	if _, err := io.WriteString(w, b.String()); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}

func (r *Report) head(b *strings.Builder) {
	if r.Machine.Simulated {
		b.WriteString(simulatedNote + "\n")
	}
	if r.Setup.Still {
		b.WriteString(stillNote + "\n")
	}
	if r.Machine.Simulated {
		b.WriteString("\n")
	}
	r.Machine.WriteText(b)
	if r.Version != "" {
		fmt.Fprintf(b, "kvlane     %s\n", r.Version)
	}
	s := &r.Setup
	fmt.Fprintf(b, "setup      up to %s at a time, about %.0f s in all, by turns; medians; seed %d\n", bench.BytesText(s.Bytes), s.BudgetSeconds, s.Seed)
	engine := s.Engine
	if engine == "" {
		engine = "all options are the default"
	}
	policies := fmt.Sprintf("loads and dumps under the %s policy", s.LoadPolicy)
	if s.LoadPolicy != s.DumpPolicy {
		policies = fmt.Sprintf("loads under the %s policy, dumps under the %s policy", s.LoadPolicy, s.DumpPolicy)
	}
	fmt.Fprintf(b, "engine     %s; %s\n", engine, policies)
	if len(s.ModelLayersMicros) > 0 {
		b.WriteString("           opened to adopt streams of the host program\n")
	}
	fmt.Fprintf(b, "C          one large copy, %s: median GB/s over all points (5th to 95th percentile):", bench.BytesText(s.LargeBytes))
	for i, c := range []struct {
		name string
		rate *bench.Rate
	}{{"h2d", &r.Reference.ToDevice}, {"d2h", &r.Reference.ToHost}, {"both", &r.Reference.Both}} {
		if c.rate.Samples == 0 {
			continue
		}
		if i > 0 {
			b.WriteString(",")
		}
		fmt.Fprintf(b, " %s %.1f (%.1f-%.1f)", c.name, c.rate.GBps, c.rate.Low, c.rate.High)
	}
	b.WriteString("\n           Each point's % is of the copies between its own turns. raw: the same pages in one batch of a bare stream, no checksums.\n" +
		"           slowest / fair: of requests at the same time the slowest (p99 over repetitions), by the time of all their bytes at C.\n")
}

var workTexts = map[Work]string{
	Load: "Loads, from the call of LeasePrefix until all is verified in pages",
	Dump: "Dumps, from the call of Dump until the pages may be reused (durable: until the blocks are)",
	Both: "Loads and dumps begun at the same time: GB/s of both in sum, times of the loads (dumps: of the dumps)",
}

// table writes a geometry's points, a table for each kind of work.
func (r *Report) table(b *strings.Builder, geometry string) {
	for _, w := range []Work{Load, Dump, Both} {
		rows := [][]string{{"at a time x blocks", "form", "hits", "GB/s", "% of C", "raw GB/s", "p50 us", "p99", "raw us", "slowest / fair", "CPU us/block", "allocs/block", "path"}}
		switch w {
		case Dump:
			rows[0] = append(rows[0], "durable p50 us", "p99")
		case Both:
			rows[0] = append(rows[0], "dumps p50 us", "p99", "loads / alone")
		case Load:
		}
		var first *Point
		for i := range r.Points {
			p := &r.Points[i]
			if p.Geometry != geometry || p.Work != w {
				continue
			}
			if first == nil {
				first = p
			}
			rows = append(rows, p.row())
		}
		if first == nil {
			continue
		}
		fmt.Fprintf(b, "\n%s, blocks of %s in pieces of %s. %s\n\n", geometry, bench.BytesText(first.BlockBytes), bench.BytesText(first.PieceBytes), workTexts[w])
		bench.WriteTable(b, rows)
	}
}

func (p *Point) row() []string {
	hits := string(p.Hits)
	if hits == "" {
		hits = "-"
	}
	row := []string{
		fmt.Sprintf("%d x %d", p.Requests, p.Blocks), string(p.form()), hits,
		fmt.Sprintf("%.1f", p.GBps), fmt.Sprintf("%.0f", p.PercentOfC), fmt.Sprintf("%.1f", p.RawGBps),
		us(p.P50Micros), us(p.P99Micros), us(p.RawMicros), times(p.SlowestOverFair), fmt.Sprintf("%.2f", p.CPUMicrosPerBlock), fmt.Sprintf("%.2f", p.AllocsPerBlock), p.Path,
	}
	switch p.Work {
	case Dump:
		row = append(row, us(p.DurableP50Micros), us(p.DurableP99Micros))
	case Both:
		row = append(row, us(p.DumpP50Micros), us(p.DumpP99Micros), times(p.LoadsOverAlone))
	case Load:
	}
	return row
}

func (p *Place) form() Form {
	if p.Layerwise {
		return Layers
	}
	return Whole
}

// us writes microseconds with as many digits as mean something.
func us(v float64) string {
	if v < 100 {
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.0f", v)
}

// times writes a ratio, and a dash where there is none.
func times(v float64) string {
	if v == 0 {
		return "-"
	}
	return fmt.Sprintf("%.2f", v)
}

// arrivals writes when layers had arrived, as a share of the time that all took.
func (r *Report) arrivals(b *strings.Builder, geometry string) {
	var rows [][]string
	for i := range r.Points {
		p := &r.Points[i]
		n := len(p.LayersMicros)
		if p.Geometry != geometry || n == 0 {
			continue
		}
		at := []int{0, 1, n / 4, n / 2, 3 * n / 4, n - 1}
		at = slices.Compact(slices.DeleteFunc(at, func(k int) bool { return k >= n }))
		slices.Sort(at)
		at = slices.Compact(at)
		if rows == nil {
			rows = [][]string{{"at a time x blocks", "work", "hits", "leased", "begun"}}
			for _, k := range at {
				rows[0] = append(rows[0], fmt.Sprintf("layer %d", k))
			}
		}
		row := []string{fmt.Sprintf("%d x %d", p.Requests, p.Blocks), string(p.Work), string(p.Hits), us(p.LeasedMicros), us(p.BegunMicros)}
		for _, k := range at {
			row = append(row, fmt.Sprintf("%s (%.0f%%)", us(p.LayersMicros[k]), 100*p.LayersMicros[k]/max(p.LayersMicros[n-1], 1e-3)))
		}
		rows = append(rows, row)
	}
	if rows != nil {
		fmt.Fprintf(b, "\n%s, loads layer by layer: when LeasePrefix and Load had returned and layers had arrived, us at the median (%% of the last)\n\n", geometry)
		bench.WriteTable(b, rows)
	}
}

// asked writes how long a layer was to take.
func (p *ModelPoint) asked() string { return layerText(time.Duration(1e3 * p.AskedMicros)) }

func layerText(d time.Duration) string { return strings.Replace(d.String(), "µ", "u", 1) }

func (r *Report) models(b *strings.Builder, geometry string) {
	var rows [][]string
	for i := range r.Models {
		p := &r.Models[i]
		if p.Geometry != geometry {
			continue
		}
		if rows == nil {
			rows = [][]string{{"layer of", "at a time x blocks", "p50 us", "p99", "load alone us", "work alone us", "longer + a layer", "excess %", "layer's work", "took us"}}
		}
		rows = append(rows, []string{
			p.asked(), fmt.Sprintf("%d x %d", p.Requests, p.Blocks), us(p.P50Micros), us(p.P99Micros), us(p.LoadMicros),
			us(p.WorkMicros), us(p.IdealMicros), fmt.Sprintf("%.1f", p.ExcessPercent), p.Layer, us(p.LayerMicros),
		})
	}
	if rows != nil {
		fmt.Fprintf(b, "\n%s, a stand-in for a model whose stream waits on the device for each layer of a load, and works: from the call of LeasePrefix until its last "+
			"work is done\n\n", geometry)
		bench.WriteTable(b, rows)
	}
}

func (r *Report) beside(b *strings.Builder) {
	if r.Beside == nil {
		return
	}
	fmt.Fprintf(b, "\nBeside %s: %% of the product's rate that is lost, with its 95%% interval over %d pairs of windows\n\n", r.Beside.What, r.Beside.Pairs)
	rows := [][]string{{"geometry", "at a time x blocks", "work", "form", "GB/s", "TFLOP/s alone", "beside", "lost %", "95% interval"}}
	for i := range r.Beside.Losses {
		l := &r.Beside.Losses[i]
		rows = append(rows, []string{
			l.Geometry, fmt.Sprintf("%d x %d", l.Requests, l.Blocks), string(l.Work), string(l.form()), fmt.Sprintf("%.1f", l.GBps),
			fmt.Sprintf("%.0f", l.AloneTFLOPS), fmt.Sprintf("%.0f", l.BesideTFLOPS), fmt.Sprintf("%.1f", 100*l.Loss),
			fmt.Sprintf("%.1f to %.1f", 100*l.Low, 100*l.High),
		})
	}
	bench.WriteTable(b, rows)
}

// Compare compares the points of a report with those of an earlier one. A change of a share less than noise is chance.
func (r *Report) Compare(earlier *Report, noise float64) *bench.Comparison {
	c := r.plain().Compare(earlier.plain(), noise)
	for _, d := range []struct{ what, was, is string }{
		{"the engine's options", earlier.Setup.Engine, r.Setup.Engine},
		{"policies", earlier.Setup.LoadPolicy + " and " + earlier.Setup.DumpPolicy, r.Setup.LoadPolicy + " and " + r.Setup.DumpPolicy},
	} {
		if d.was != d.is && d.was != " and " { // of reports that did not say
			c.Notes = append(c.Notes, fmt.Sprintf("%s were %q and are %q", d.what, d.was, d.is))
		}
	}
	return c
}

// plain is the report in the form of that of copies, as far as a comparison goes.
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
			q.Layout += bench.Layout(", hits in " + string(p.Hits))
		}
		out.Points = append(out.Points, q)
	}
	for i := range r.Models {
		p := &r.Models[i]
		out.Points = append(out.Points, bench.Point{
			Path: p.Geometry + " beside a model", Cell: bench.Cell{Size: p.Bytes / int64(p.Blocks), Count: p.Blocks}, Direction: bench.Direction(p.Work),
			Layout: bench.Layout("layers of " + p.asked()), GBps: p.GBps, LowGBps: p.LowGBps, HighGBps: p.HighGBps,
		})
	}
	return out
}
