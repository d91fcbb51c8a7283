package chart

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"github.com/kvlane/kvlane/bench/request"
)

// WriteRequests writes the charts of a report of requests into dir, which it makes if needed, and returns the files' names: for each
// geometry the rate by request size, when layers arrive, and a map of the share of C by request size and requests at a time.
func WriteRequests(dir string, r *request.Report) ([]string, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("write charts: %w", err)
	}
	var files []string
	for _, g := range r.Setup.Geometries {
		for _, c := range []struct {
			name string
			draw func(*request.Report, string) (*figure, error)
		}{{"store-rate", requestRates}, {"store-layers", arrivals}, {"store-map", requestMap}} {
			written, err := write(filepath.Join(dir, c.name+"-"+g), func() (*figure, error) { return c.draw(r, g) })
			if err != nil {
				return files, err
			}
			files = append(files, written...)
		}
	}
	return files, nil
}

// storePoints returns the points that want picks.
func storePoints(r *request.Report, want func(*request.Point) bool) []request.Point {
	return slices.DeleteFunc(slices.Clone(r.Points), func(p request.Point) bool { return !want(&p) })
}

// requestRates is GB/s by the bytes of a request, one at a time, for each kind of work.
func requestRates(r *request.Report, geometry string) (*figure, error) {
	f := newFigure(&r.Machine, fmt.Sprintf("Requests of %s: GB/s by blocks of a request", geometry), "from the call until verified in pages, or until pages are free")
	for _, w := range []request.Work{request.Load, request.Dump, request.Both} {
		all := storePoints(r, func(p *request.Point) bool { return p.Geometry == geometry && p.Work == w })
		if len(all) == 0 {
			continue
		}
		p := f.panel(map[request.Work]string{request.Load: "loads", request.Dump: "dumps", request.Both: "both at once, in sum"}[w])
		p.X.Label.Text, p.Y.Label.Text = "blocks of a request", "GB/s"
		p.Add(grid())
		lines := make(map[string]plotter.XYs)
		var names []string
		add := func(name string, x, y float64) {
			if lines[name] == nil {
				names = append(names, name)
			}
			lines[name] = append(lines[name], plotter.XY{X: x, Y: y})
		}
		least := slices.MinFunc(all, func(a, b request.Point) int { return a.Requests - b.Requests }).Requests
		var c float64
		for i := range all {
			q := &all[i]
			add(requestName(q), float64(q.Blocks), q.GBps)
			if !q.Layerwise && q.Requests == least && w != request.Both && (q.Hits == "" || q.Hits == request.InCache) {
				add("bare stream, one batch", float64(q.Blocks), q.RawGBps)
			}
			c = max(c, q.LargeGBps)
		}
		for _, name := range names {
			if err := f.line(p, name, lines[name]); err != nil {
				return nil, err
			}
		}
		if p.X.Min == p.X.Max {
			p.X.Min, p.X.Max = p.X.Min/2, p.X.Max*2
		}
		logX(p, decadeTicks{})
		f.level(p, large, c)
		logY(p)
	}
	return f.withCommonY()
}

// requestName is a line's name in the legend.
func requestName(p *request.Point) string {
	form := "whole"
	if p.Layerwise {
		form = "by layers"
	}
	name := fmt.Sprintf("%s, %d at a time", form, p.Requests)
	if p.Hits != "" && p.Hits != request.InCache {
		name += ", " + string(p.Hits)
	}
	return name
}

// arrivals is when layers had arrived, as shares of all layers and of the time until the last: those that come in order and evenly
// lie on the diagonal.
func arrivals(r *request.Report, geometry string) (*figure, error) {
	f := newFigure(&r.Machine, fmt.Sprintf("Loads of %s layer by layer, one size a line: when layers had arrived, medians", geometry), "hits in the cache")
	for _, requests := range r.Setup.Requests {
		all := storePoints(r, func(p *request.Point) bool {
			return p.Geometry == geometry && p.Work == request.Load && p.Requests == requests && p.Hits == request.InCache && len(p.LayersMicros) > 1
		})
		if len(all) == 0 {
			continue
		}
		p := f.panel(fmt.Sprintf("%d at a time", requests))
		p.X.Label.Text, p.Y.Label.Text = "layer", "% of the time until the last"
		p.Add(grid())
		for i := range all {
			v := all[i].LayersMicros
			xys := make(plotter.XYs, len(v))
			for k := range v {
				xys[k] = plotter.XY{X: float64(k), Y: 100 * v[k] / max(v[len(v)-1], 1e-3)}
			}
			if err := f.line(p, fmt.Sprintf("%d blocks", all[i].Blocks), xys); err != nil {
				return nil, err
			}
		}
		last := float64(len(all[0].LayersMicros) - 1)
		even := &plotter.Line{XYs: plotter.XYs{{X: 0, Y: 100 / (last + 1)}, {X: last, Y: 100}}, LineStyle: draw.LineStyle{Color: gray, Width: vg.Points(1), Dashes: dashed}}
		p.Add(even)
		f.name("evenly", even)
		p.Y.Min, p.Y.Max = 0, 105
		p.Y.Tick.Marker = plot.ConstantTicks(every(20, 0, 100))
	}
	return f.withCommonY()
}

// line draws a line with marks, in a style that follows from its place in the legend.
func (f *figure) line(p *plot.Plot, name string, xys plotter.XYs) error {
	line, marks, err := plotter.NewLinePoints(xys)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	s := f.styleInTurn(name)
	line.LineStyle, marks.GlyphStyle = s.line(), s.glyph()
	marks.Radius = vg.Points(2)
	p.Add(line, marks)
	f.name(name, line, marks)
	return nil
}
