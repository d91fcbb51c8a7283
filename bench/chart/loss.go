package chart

import (
	"fmt"
	"image/color"
	"math"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"github.com/kvlane/kvlane/bench"
)

const (
	// The stream's own choice may be this much slower than the best path, in percent.
	plannerLimit = 100 * bench.MaxLost
	// What is shown: a loss beyond is drawn at the edge, so that one of them does not flatten all others.
	lossFloor, lossCeiling = -20, 60
)

// countColors are for counts from 1, 10, 100, ...: dark to light, told apart by lightness alone.
var countColors = []color.Color{
	color.RGBA{0x00, 0x00, 0x00, 0xff},
	color.RGBA{0x3b, 0x30, 0x7a, 0xff},
	color.RGBA{0x00, 0x72, 0xb2, 0xff},
	color.RGBA{0x1b, 0xa3, 0x8a, 0xff},
	color.RGBA{0xe6, 0x9f, 0x00, 0xff},
	color.RGBA{0xe0, 0xc8, 0x3a, 0xff},
}

// plannerLoss is what the stream's own choice loses against the best single path, at every point.
func plannerLoss(r *bench.Report) (*figure, error) {
	f := copies(r, "What the stream's own choice loses against the best single path")
	all := r.Regrets()
	for _, d := range directions {
		var p *plot.Plot
		for decade := range countColors {
			for _, layout := range []bench.Layout{bench.HostScattered, bench.HostContiguous} {
				var xys plotter.XYs
				for _, l := range all {
					if l.Direction == d.d && l.Layout == layout && l.Best != "" && min(int(math.Log10(float64(l.Count))), len(countColors)-1) == decade {
						xys = append(xys, plotter.XY{X: float64(l.Size), Y: min(max(100*l.Lost, lossFloor), lossCeiling)})
					}
				}
				if len(xys) == 0 {
					continue
				}
				if p == nil {
					p = f.panel(d.title)
					p.X.Label.Text, p.Y.Label.Text = "block size (bytes)", "slower than the best path, %"
					p.Add(grid())
				}
				if err := f.lossMarks(p, xys, decade, layout); err != nil {
					return nil, err
				}
			}
		}
		if p != nil {
			f.lossAxes(p)
		}
	}
	f.name("circles: host scattered")
	f.name("triangles: contiguous")
	f.name(fmt.Sprintf("cut off at %d and %d%%", lossFloor, lossCeiling))
	return f.withCommonY()
}

func (f *figure) lossMarks(p *plot.Plot, xys plotter.XYs, decade int, layout bench.Layout) error {
	marks, err := plotter.NewScatter(xys)
	if err != nil {
		return err
	}
	marks.GlyphStyle = draw.GlyphStyle{Color: countColors[decade], Shape: draw.CircleGlyph{}, Radius: vg.Points(3.5)}
	if layout == bench.HostContiguous {
		marks.Shape = draw.PyramidGlyph{}
	}
	p.Add(marks)
	f.name(countText(decade), marks)
	return nil
}

// countText is the range of counts of a color.
func countText(decade int) string {
	from := int(math.Pow10(decade))
	if decade == len(countColors)-1 {
		return fmt.Sprintf("%d blocks", from)
	}
	return fmt.Sprintf("%d to %d blocks", from, 10*from-1)
}

func (f *figure) lossAxes(p *plot.Plot) {
	// A range of one size only would have no length.
	if p.X.Min == p.X.Max {
		p.X.Min, p.X.Max = p.X.Min/2, p.X.Max*2
	}
	logX(p, sizeTicks{})
	limit := &plotter.Line{XYs: plotter.XYs{{X: p.X.Min, Y: plannerLimit}, {X: p.X.Max, Y: plannerLimit}}, LineStyle: draw.LineStyle{Color: vermillion, Width: vg.Points(1), Dashes: dashed}}
	p.Add(limit)
	f.name(fmt.Sprintf("limit: %.0f%%", plannerLimit), limit)
	p.Y.Min, p.Y.Max = lossFloor-3, lossCeiling+3
	p.Y.Tick.Marker = plot.ConstantTicks(every(20, lossFloor, lossCeiling))
}

// The copies may cost the product this much of its rate.
const productLimit = 3

// product is what each contender costs the product, with its interval, and how fast it copied.
func product(r *bench.Report) (*figure, error) {
	if r.Product == nil || len(r.Product.Losses) == 0 {
		return nil, nil //nolint:nilnil // no figure is no failure
	}
	counts := ""
	if !r.Product.Counts {
		counts = fmt.Sprintf(" (under %d: does not count)", bench.MinTFLOPS)
	}
	f := copies(r, fmt.Sprintf("What copies cost a matrix product beside them, %.0f TFLOP/s alone%s", r.Product.AloneTFLOPS, counts))
	f.subtitle += fmt.Sprintf(" of %s, host side %s, in blocks of %s", bench.BytesText(r.Product.BatchBytes),
		strings.TrimPrefix(string(r.Product.Layout), "host "), bench.BytesText(r.Product.BlockBytes))
	for _, d := range directions {
		var list []bench.Loss
		for _, l := range r.Product.Losses {
			if l.Direction == d.d {
				list = append(list, l)
			}
		}
		if len(list) == 0 {
			continue
		}
		if err := f.losses(f.panel(d.title), list); err != nil {
			return nil, err
		}
	}
	return f.withCommonY()
}

// lossTicks marks multiples of 5, or of 10 or 20 where those are many.
type lossTicks struct{}

// Ticks implements plot.Ticker.
func (lossTicks) Ticks(low, high float64) []plot.Tick {
	step := 5.0
	for (high-low)/step > 10 {
		step *= 2
	}
	return every(step, math.Ceil(low/step)*step, high)
}

// bars is a panel's losses for plotter's error bars.
type bars struct {
	plotter.XYs
	plotter.YErrors
}

func (f *figure) losses(p *plot.Plot, list []bench.Loss) error {
	g := grid()
	g.Vertical.Width = 0
	p.Add(g)
	p.Y.Label.Text = "loss of the product's rate, %"
	names := make([]string, len(list))
	var all bars
	labels := plotter.XYLabels{}
	for i, l := range list {
		names[i] = l.Path
		bar, err := plotter.NewBarChart(plotter.Values{100 * l.Loss}, vg.Points(16))
		if err != nil {
			return fmt.Errorf("%s: %w", l.Path, err)
		}
		bar.XMin, bar.Color, bar.LineStyle.Width = float64(i), styleOf(l.Path).color, 0
		p.Add(bar)
		all.XYs = append(all.XYs, plotter.XY{X: float64(i), Y: 100 * l.Loss})
		all.YErrors = append(all.YErrors, struct{ Low, High float64 }{100 * (l.Loss - l.Low), 100 * (l.High - l.Loss)})
		above := 100 * max(l.High, 0)
		if above < productLimit { // above the line of the limit, too
			above = productLimit
		}
		labels.XYs = append(labels.XYs, plotter.XY{X: float64(i), Y: above})
		labels.Labels = append(labels.Labels, fmt.Sprintf("%.0f", l.GBps))
	}
	errs, err := plotter.NewYErrorBars(all)
	if err != nil {
		return err
	}
	errs.Color, errs.Width = gray, vg.Points(1.2)
	texts, err := plotter.NewLabels(labels)
	if err != nil {
		return err
	}
	for i := range texts.TextStyle {
		texts.TextStyle[i].Font.Size = vg.Points(9)
		texts.TextStyle[i].XAlign = text.XCenter
	}
	texts.Offset.Y = vg.Points(4)
	limit := &plotter.Line{XYs: plotter.XYs{{X: -0.6, Y: productLimit}, {X: float64(len(list)) - 0.4, Y: productLimit}}, LineStyle: draw.LineStyle{Color: vermillion, Width: vg.Points(1), Dashes: dashed}}
	p.Add(errs, texts, limit)
	f.name(fmt.Sprintf("limit: %d%%", productLimit), limit)
	f.name("gray: 95% interval")
	f.name("numbers: GB/s copied")
	p.NominalX(names...)
	p.X.Padding = vg.Points(10) // names are below what bars and intervals reach below zero
	p.X.Tick.Label.Rotation = math.Pi / 5
	p.X.Tick.Label.XAlign, p.X.Tick.Label.YAlign = text.XRight, text.YCenter
	p.X.Min, p.X.Max = -0.6, float64(len(list))-0.4
	p.Y.Min, p.Y.Max = min(p.Y.Min*1.1, 0), max(p.Y.Max*1.15, 5)
	p.Y.Tick.Marker = lossTicks{}
	return nil
}
