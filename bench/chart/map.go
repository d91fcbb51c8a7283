package chart

import (
	"fmt"
	"image/color"
	"math"
	"slices"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"

	"github.com/kvlane/kvlane/bench/request"
)

// requestMap is % of C by blocks of a request and requests at a time, hits in the cache: a panel for each kind of work and form. Nil of
// a single column or row, which the rates show.
func requestMap(r *request.Report, geometry string) (*figure, error) {
	sizes, counts := slices.Sorted(slices.Values(r.Setup.Blocks)), slices.Sorted(slices.Values(r.Setup.Requests))
	if len(sizes) < 2 || len(counts) < 2 {
		return nil, nil
	}
	f := newFigure(&r.Machine, fmt.Sprintf("Requests of %s: %% of one large copy, by blocks of a request and requests at a time", geometry), "hits in the cache")
	for _, w := range []request.Work{request.Load, request.Dump, request.Both} {
		for _, layerwise := range []bool{false, true} {
			cells := cells{columns: len(sizes), rows: len(counts), percent: make(map[[2]int]float64)}
			for i := range r.Points {
				p := &r.Points[i]
				if p.Geometry == geometry && p.Work == w && p.Layerwise == layerwise && (p.Hits == "" || p.Hits == request.InCache) {
					cells.percent[[2]int{slices.Index(sizes, p.Blocks), slices.Index(counts, p.Requests)}] = p.PercentOfC
				}
			}
			if len(cells.percent) == 0 {
				continue
			}
			form := "whole"
			if layerwise {
				form = "by layers"
			}
			p := f.panel(map[request.Work]string{request.Load: "loads", request.Dump: "dumps", request.Both: "both at once"}[w] + ", " + form)
			p.X.Label.Text, p.Y.Label.Text = "blocks of a request", "requests at a time"
			p.X.Tick.Marker, p.Y.Tick.Marker = places(sizes, strconv.Itoa), places(counts, strconv.Itoa)
			if err := cells.draw(p); err != nil {
				return nil, err
			}
		}
	}
	if len(f.panels) == 0 {
		return nil, nil
	}
	return f, nil
}

// places marks numbers one after the other, evenly.
func places(all []int, text func(int) string) plot.ConstantTicks {
	var ticks plot.ConstantTicks
	for i, n := range all {
		ticks = append(ticks, plot.Tick{Value: float64(i), Label: text(n)})
	}
	return ticks
}

// cells are a map's, by column and row. It implements plotter.GridXYZ.
type cells struct {
	columns, rows int
	percent       map[[2]int]float64
}

// Dims implements plotter.GridXYZ.
func (c *cells) Dims() (columns, rows int) { return c.columns, c.rows }

// X implements plotter.GridXYZ.
func (c *cells) X(column int) float64 { return float64(column) }

// Y implements plotter.GridXYZ.
func (c *cells) Y(row int) float64 { return float64(row) }

// Z implements plotter.GridXYZ.
func (c *cells) Z(column, row int) float64 {
	if v, ok := c.percent[[2]int{column, row}]; ok {
		return min(v, 100)
	}
	return math.NaN()
}

// draw colors the cells that were measured, and writes each one's figure into it.
func (c *cells) draw(p *plot.Plot) error {
	heat := plotter.NewHeatMap(c, shades{})
	heat.Min, heat.Max, heat.NaN = 0, 100, paleGray
	p.Add(heat)
	var at plotter.XYs
	var texts []string
	for column := range c.columns {
		for row := range c.rows {
			if v, ok := c.percent[[2]int{column, row}]; ok {
				at, texts = append(at, plotter.XY{X: float64(column), Y: float64(row)}), append(texts, fmt.Sprintf("%.0f", v))
			}
		}
	}
	labels, err := plotter.NewLabels(plotter.XYLabels{XYs: at, Labels: texts})
	if err != nil {
		return err
	}
	for i := range labels.TextStyle {
		s := &labels.TextStyle[i]
		s.Font.Size, s.XAlign, s.YAlign = vg.Points(10), text.XCenter, text.YCenter
	}
	p.Add(labels)
	return nil
}

// shades go from orange, at zero, to green, at all of C; pale enough to write on.
type shades struct{}

// Colors implements palette.Palette.
func (shades) Colors() []color.Color {
	const steps = 101
	from, to := color.RGBA{0xf6, 0xc6, 0x8f, 0xff}, color.RGBA{0x86, 0xd3, 0xbd, 0xff}
	mix := func(a, b uint8, k int) uint8 { return uint8((int(a)*(steps-1-k) + int(b)*k) / (steps - 1)) }
	var all []color.Color
	for k := range steps {
		all = append(all, color.RGBA{mix(from.R, to.R, k), mix(from.G, to.G, k), mix(from.B, to.B, k), 0xff})
	}
	return all
}
