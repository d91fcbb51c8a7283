package bench

import (
	"fmt"
	"io"
	"slices"
	"strings"
)

const simulatedNote = "SIMULATED: the figures describe the simulated device, not hardware."

// WriteText writes the report for people, as tables in Markdown: what matters most first.
func (r *Report) WriteText(w io.Writer) error {
	var b strings.Builder
	WriteIncomplete(&b, r.Incomplete)
	r.head(&b)
	r.summary(&b)
	r.few(&b)
	r.product(&b)
	r.forms(&b)
	r.nics(&b)
	for _, layout := range hostLayouts {
		for _, d := range []Direction{ToDevice, ToHost, Both} {
			r.bandwidths(&b, r.BySize(d, layout), fmt.Sprintf("Scattered device blocks, %s, %s", r.layoutText(layout), directionTexts[d]))
		}
	}
	r.latencies(&b)
	r.planner(&b)
	r.peers(&b)
	r.shortened(&b)
	for _, m := range r.Missing {
		fmt.Fprintf(&b, "\nnot measured: %s: %s\n", m.Path, m.Reason)
	}
	WriteLeftOut(&b, r.LeftOut, r.Setup.BudgetSeconds)
	return written(io.WriteString(w, b.String()))
}

func written(_ int, err error) error {
	if err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}

func (r *Report) head(b *strings.Builder) {
	f, s := &r.Machine, &r.Setup
	if f.Simulated {
		b.WriteString(simulatedNote + "\n\n")
	}
	f.WriteText(b)
	reps := fmt.Sprintf("%d repetitions a point", s.Reps)
	if s.Reps == 0 {
		reps = fmt.Sprintf("about %.0f s in all, %d to %d repetitions a point", s.BudgetSeconds, minReps, maxReps)
	}
	fmt.Fprintf(b, "setup      up to %s in batches of up to %d blocks (%s) over %s of device memory, %s, by turns; medians; seed %d\n",
		BytesText(s.Bytes), s.BatchBlocks, s.Form, BytesText(s.PoolBytes), reps, s.Seed)
	if s.DriverCall > 0 {
		fmt.Fprintf(b, "baselines  %s: a call for each block; %s: calls of at most %d blocks\n", OneCopyEach, DriverBatch, s.DriverCall)
	}
	if s.Planner != "" {
		fmt.Fprintf(b, "planner    %s\n", s.Planner)
	}
	if len(s.Without) > 0 {
		fmt.Fprintf(b, "without    %s: never the stream's own choice\n", strings.Join(s.Without, ", "))
	}
	for _, n := range s.NICs {
		fmt.Fprintf(b, "nic        %s\n", n)
	}
	fmt.Fprintf(b, "C          one large copy, %s: median GB/s over all points (5th to 95th percentile): %s\n", BytesText(s.ReferenceBytes), r.Reference.text())
	b.WriteString("           Each point's % is of the copies between its own turns.\n")
}

// layoutText says how long slots are.
func (r *Report) layoutText(l Layout) string {
	if l == HostSlots {
		return fmt.Sprintf("%s of %s", l, BytesText(r.Setup.SlotBytes))
	}
	return string(l)
}

var directionTexts = map[Direction]string{ToDevice: "host to device", ToHost: "device to host", Both: "both ways at once"}

func (r *Reference) text() string {
	var parts []string
	for _, d := range []Direction{ToDevice, ToHost, Both} {
		if c := r.Of(d); c.Samples > 0 {
			parts = append(parts, fmt.Sprintf("%s %.1f (%.1f-%.1f)", d, c.GBps, c.Low, c.High))
		}
	}
	return strings.Join(parts, ", ")
}

// summary writes what the stream's own choice reached, by block size.
func (r *Report) summary(b *strings.Builder) {
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
	r.bandwidths(b, rows, "The stream's own choice (auto), device blocks scattered")
}

// headlineCounts are the numbers of blocks whose latency comes first.
var headlineCounts = []int{1, 64}

// few writes how soon few blocks arrive, by the stream's own choice and by the fastest path.
func (r *Report) few(b *strings.Builder) {
	tw, some := newTable(b, "blocks"), false
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
			if auto == nil || best == nil {
				continue
			}
			if !some {
				some = true
				fmt.Fprintf(b, "\nFew blocks, host scattered, from Submit to done: us at the median (p99)\n\n")
				tw.put("| direction\t| auto\t| by\t| fastest path\t| by\t")
				tw.rule(5)
			}
			tw.put("| %d x %s\t| %s\t| %.1f (%.1f)\t| %s\t| %.1f (%.1f)\t| %s\t|\n", n, BytesText(latencySize), d,
				auto.P50Micros, auto.P99Micros, auto.Traveled, best.P50Micros, best.P99Micros, best.Path)
		}
	}
	if some {
		tw.end()
	}
}

// bandwidths writes a row a path, a column a block size, in each "GB/s (% of C)".
func (r *Report) bandwidths(b *strings.Builder, rows []Row, title string) {
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
	fmt.Fprintf(b, "\n%s: GB/s (%% of C)\n\n", title)
	tw := newTable(b, "path")
	for _, c := range cells {
		tw.put("| %d x %s\t", c.Count, BytesText(c.Size))
	}
	tw.rule(len(cells))
	for _, row := range rows {
		tw.put("| %s\t", row.Path)
		for _, c := range cells {
			i := slices.IndexFunc(row.Points, func(p Point) bool { return p.Cell == c })
			if i < 0 {
				tw.put("| \t")
				continue
			}
			p := &row.Points[i]
			tw.put("| %.1f (%.0f)%s\t", p.GBps, 100*p.Share, p.mark())
		}
		tw.put("|\n")
	}
	tw.end()
}

// mark is a star where the point moved fewer blocks than its cell says.
func (p *Point) mark() string {
	if p.Blocks < p.Count {
		return "*"
	}
	return ""
}

// latencies writes p50 and p99 by count, of the block size that has the most counts.
func (r *Report) latencies(b *strings.Builder) {
	size := r.LatencySize()
	for _, d := range []Direction{ToDevice, ToHost} {
		rows := r.ByCount(size, d, HostScattered)
		if len(rows) == 0 || len(rows[0].Points) < 2 {
			continue
		}
		fmt.Fprintf(b, "\nBlocks of %s from Submit to done, host scattered, %s: us at the median (p99)\n\n", BytesText(size), directionTexts[d])
		tw := newTable(b, "path")
		for _, p := range rows[0].Points {
			tw.put("| %d\t", p.Count)
		}
		tw.rule(len(rows[0].Points))
		for _, row := range rows {
			tw.put("| %s\t", row.Path)
			for _, p := range row.Points {
				if p.Blocks < p.Count { // it has no time for that many
					tw.put("| *\t")
					continue
				}
				tw.put("| %.1f (%.1f)\t", p.P50Micros, p.P99Micros)
			}
			tw.put("|\n")
		}
		tw.end()
	}
}

// forms writes how lists, page lists and checksums compare.
func (r *Report) forms(b *strings.Builder) {
	if len(r.Forms) == 0 {
		return
	}
	b.WriteString("\nForms of batches, the stream's own choice: GB/s (% of C), and what Submit costs the CPU\n\n")
	tw := newTable(b, "blocks")
	tw.put("| direction\t| host\t| form\t| path\t| GB/s\t| with checksums, %%\t| Submit ns a block\t| allocations a block\t")
	tw.rule(8)
	for i := range r.Forms {
		p := &r.Forms[i]
		against := ""
		if cost, ok := r.ChecksumCost(p); ok {
			against = fmt.Sprintf("%+.1f", -100*cost)
		} else if p.Form == PagesSummed {
			against = "none made"
		}
		// Of few blocks it is the cost of a batch.
		submit, allocs := "", ""
		if p.Blocks >= SubmitBlocks {
			submit, allocs = fmt.Sprintf("%.1f", p.SubmitNanos()), fmt.Sprintf("%.4f", p.AllocsPerBlock)
		}
		tw.put("| %d x %s\t| %s\t| %s\t| %s\t| %s\t| %.1f (%.0f)%s\t| %s\t| %s\t| %s\t|\n", p.Count, BytesText(p.Size), p.Direction,
			strings.TrimPrefix(string(p.Layout), "host "), p.Form,
			p.Traveled, p.GBps, 100*p.Share, p.mark(), against, submit, allocs)
	}
	tw.end()
}

// product writes what the copies cost the product.
func (r *Report) product(b *strings.Builder) {
	f := r.Product
	if f == nil {
		return
	}
	fmt.Fprintf(b, "\nBeside %s, %.0f TFLOP/s alone: device blocks of %s scattered, %s, %d batches of %s at a time. The loss is of the product's rate: mean of %d pairs of windows of %d products with and without copies, 95%% interval of Student's t.\n",
		f.What, f.AloneTFLOPS, BytesText(f.BlockBytes), r.layoutText(f.Layout), f.Batches, BytesText(f.BatchBytes), f.Pairs, f.PerWindow)
	if !f.Counts {
		fmt.Fprintf(b, "It does not count: the product should reach %d TFLOP/s alone, or it has nothing to lose.\n", MinTFLOPS)
	}
	fmt.Fprint(b, "\n")
	tw := newTable(b, "path")
	tw.put("| by\t| direction\t| copies GB/s\t| loss %%\t| from\t| to\t| TFLOP/s alone\t| beside\t")
	tw.rule(8)
	for _, l := range f.Losses {
		tw.put("| %s\t| %s\t| %s\t| %.1f\t| %.1f\t| %.1f\t| %.1f\t| %.0f\t| %.0f\t|\n", l.Path, l.Traveled, l.Direction, l.GBps, 100*l.Loss,
			100*l.Low, 100*l.High, l.AloneTFLOPS, l.BesideTFLOPS)
	}
	tw.end()
}

// shortened says what was moved where it was not what the cell says.
func (r *Report) shortened(b *strings.Builder) {
	var n int
	var moved int64
	points := slices.Concat(r.Points, r.Soft)
	for i := range points {
		p := &points[i]
		moved += p.Bytes * int64(p.Reps)
		if p.Blocks < p.Count {
			n++
		}
	}
	fmt.Fprintf(b, "\nMoved %.1f GB in %d points.", float64(moved)/1e9, len(points))
	if n > 0 {
		fmt.Fprintf(b, " * %d points moved fewer blocks than their column says: the time was too short, or the contender more than %d times slower than the fastest there. JSON and CSV say how many.", n, slowFactor)
	}
	fmt.Fprint(b, "\n")
}
