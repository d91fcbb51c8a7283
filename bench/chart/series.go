package chart

import (
	"fmt"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"

	"github.com/kvlane/kvlane/bench"
)

var directions = []struct {
	d     bench.Direction
	title string
}{{bench.ToDevice, "host to device"}, {bench.ToHost, "device to host"}, {bench.Both, "both at once, in sum"}}

// large is how one large copy is called.
const large = "one large copy (C)"

// bandwidth is GB/s by block size.
func bandwidth(r *bench.Report, layout bench.Layout) (*figure, error) {
	f := copies(r, fmt.Sprintf("Bandwidth by block size, device blocks scattered, %s", layout))
	for _, d := range directions {
		if err := f.bandwidth(d.title, r.BySize(d.d, layout), r.Reference.Of(d.d).GBps); err != nil {
			return nil, err
		}
	}
	return f.withCommonY()
}

// byNIC is GB/s by block size through NICs, beside copies by CUDA.
func byNIC(r *bench.Report, layout bench.Layout) (*figure, error) {
	return throughNICs(r, layout, false, fmt.Sprintf("Through RDMA NICs, device blocks scattered, %s", layout))
}

// bySoftNIC is the same with NICs in software, which have a figure of their own.
func bySoftNIC(r *bench.Report, layout bench.Layout) (*figure, error) {
	return throughNICs(r, layout, true, fmt.Sprintf("nic-soft: NICs in software, no figure of a NIC, %s", layout))
}

func throughNICs(r *bench.Report, layout bench.Layout, soft bool, title string) (*figure, error) {
	f := copies(r, title)
	for _, d := range directions {
		if err := f.bandwidth(d.title, r.NICRows(d.d, layout, soft), r.Reference.Of(d.d).GBps); err != nil {
			return nil, err
		}
	}
	return f.withCommonY()
}

// peers is GB/s by block size between two devices.
func peers(r *bench.Report) (*figure, error) {
	if r.Peers == nil {
		return nil, nil //nolint:nilnil // no figure is no failure
	}
	f := copies(r, "Bandwidth between two devices by block size, streams of the first")
	between := &bench.Report{Points: r.Peers.Points}
	for _, p := range []struct {
		title  string
		d      bench.Direction
		layout bench.Layout
	}{
		{"pull, both scattered", bench.ToDevice, bench.BothScattered},
		{"push, both scattered", bench.ToHost, bench.BothScattered},
		{"pull, both contiguous", bench.ToDevice, bench.BothContiguous},
	} {
		if err := f.bandwidth(p.title, between.BySize(p.d, p.layout), r.Peers.Reference.Of(p.d).GBps); err != nil {
			return nil, err
		}
	}
	return f.withCommonY()
}

// bandwidth adds a panel of GB/s by block size, if there are any.
func (f *figure) bandwidth(title string, rows []bench.Row, c float64) error {
	if len(rows) == 0 {
		return nil
	}
	p := f.panel(title)
	p.X.Label.Text, p.Y.Label.Text = "block size (bytes)", "GB/s"
	if err := f.lines(p, rows, func(q *bench.Point) (x, y float64) { return float64(q.Size), q.GBps }); err != nil {
		return err
	}
	logX(p, sizeTicks{})
	f.level(p, large, c)
	logY(p)
	return nil
}

// share is the share of one large copy by block size.
func share(r *bench.Report, layout bench.Layout) (*figure, error) {
	f := copies(r, fmt.Sprintf("Share of one large copy by block size, device blocks scattered, %s", layout))
	for _, d := range directions {
		rows := r.BySize(d.d, layout)
		if len(rows) == 0 {
			continue
		}
		p := f.panel(d.title)
		p.X.Label.Text, p.Y.Label.Text = "block size (bytes)", "% of one large copy"
		if err := f.lines(p, rows, func(q *bench.Point) (x, y float64) { return float64(q.Size), 100 * q.Share }); err != nil {
			return nil, err
		}
		logX(p, sizeTicks{})
		f.level(p, large, 100)
		p.Y.Min, p.Y.Max = 0, max(105, p.Y.Max*1.02)
		p.Y.Tick.Marker = plot.ConstantTicks(every(20, 0, p.Y.Max))
	}
	return f.withCommonY()
}

func every(step, low, high float64) []plot.Tick {
	var ticks []plot.Tick
	for v := low; v <= high; v += step {
		ticks = append(ticks, plot.Tick{Value: v, Label: fmt.Sprint(v + 0)}) // of a negative zero, zero
	}
	return ticks
}

// latency is the median time of a batch by count, of the block size with the most counts.
func latency(r *bench.Report, layout bench.Layout) (*figure, error) {
	size := r.LatencySize()
	f := copies(r, fmt.Sprintf("From Submit to done, medians, blocks of %s scattered on the device, %s", bench.BytesText(size), layout))
	for _, d := range directions {
		rows := r.ByCount(size, d.d, layout)
		if len(rows) == 0 || len(rows[0].Points) < 2 {
			continue
		}
		p := f.panel(d.title)
		p.X.Label.Text, p.Y.Label.Text = "blocks in the batch", "microseconds"
		// What moved fewer blocks than its count says has no time for that count.
		for i := range rows {
			rows[i].Points = slices.DeleteFunc(rows[i].Points, func(q bench.Point) bool { return q.Blocks < q.Count })
		}
		if err := f.lines(p, rows, func(q *bench.Point) (x, y float64) { return float64(q.Count), q.P50Micros }); err != nil {
			return nil, err
		}
		logX(p, decadeTicks{})
		logY(p)
	}
	return f.withCommonY()
}

// withCommonY ends a figure; one without panels is nil.
func (f *figure) withCommonY() (*figure, error) {
	if len(f.panels) == 0 {
		return nil, nil //nolint:nilnil // no figure is no failure
	}
	f.shareY()
	return f, nil
}

// lines draws a line for each row. The stream's own choice lies on top, as it should coincide with another.
func (f *figure) lines(p *plot.Plot, rows []bench.Row, at func(*bench.Point) (x, y float64)) error {
	p.Add(grid())
	var top []plot.Plotter
	for _, row := range rows {
		if len(row.Points) == 0 {
			continue
		}
		xys := make(plotter.XYs, len(row.Points))
		for i := range row.Points {
			xys[i].X, xys[i].Y = at(&row.Points[i])
		}
		line, marks, err := plotter.NewLinePoints(xys)
		if err != nil {
			return fmt.Errorf("%s: %w", row.Path, err)
		}
		s := styleOf(row.Path)
		line.LineStyle, marks.GlyphStyle = s.line(), s.glyph()
		f.name(row.Path, line, marks)
		if row.Path == bench.Auto {
			top = append(top, line, marks)
			continue
		}
		p.Add(line, marks)
	}
	p.Add(top...)
	return nil
}

// level draws a horizontal line over the whole panel.
func (f *figure) level(p *plot.Plot, name string, y float64) {
	line := &plotter.Line{XYs: plotter.XYs{{X: p.X.Min, Y: y}, {X: p.X.Max, Y: y}}, LineStyle: styleOf(name).line()}
	p.Add(line)
	f.name(name, line)
}

func grid() *plotter.Grid {
	g := plotter.NewGrid()
	g.Vertical.Color, g.Horizontal.Color = paleGray, paleGray
	g.Vertical.Width, g.Horizontal.Width = vg.Points(0.4), vg.Points(0.4)
	return g
}
