package chart

import (
	"fmt"
	"slices"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"

	"github.com/kvlane/kvlane/bench"
)

// copyMap is what the stream's own choice reaches, in % of one large copy, by block size and number of blocks. Nil of a single column or
// row, which the lines show.
func copyMap(r *bench.Report, layout bench.Layout) (*figure, error) {
	f := copies(r, fmt.Sprintf("The stream's own choice: %% of one large copy, by size and number of blocks scattered on the device, %s", layout))
	for _, d := range directions {
		own := slices.DeleteFunc(slices.Clone(r.Points), func(p bench.Point) bool {
			return p.Path != bench.Auto || p.Direction != d.d || p.Layout != layout || p.Blocks < p.Count // which has no figure for so many
		})
		sizes := distinct(own, func(p *bench.Point) int { return int(p.Size) })
		counts := distinct(own, func(p *bench.Point) int { return p.Count })
		if len(sizes) < 2 || len(counts) < 2 {
			continue
		}
		c := cells{columns: len(sizes), rows: len(counts), percent: make(map[[2]int]float64)}
		for i := range own {
			p := &own[i]
			c.percent[[2]int{slices.Index(sizes, int(p.Size)), slices.Index(counts, p.Count)}] = 100 * p.Share
		}
		p := f.panel(d.title)
		p.X.Label.Text, p.Y.Label.Text = "block size (bytes)", "blocks"
		p.X.Tick.Marker = places(sizes, func(n int) string { return sizeText(int64(n)) })
		p.Y.Tick.Marker = places(counts, strconv.Itoa)
		if err := c.draw(p); err != nil {
			return nil, err
		}
	}
	if len(f.panels) == 0 {
		return nil, nil //nolint:nilnil // no figure is no failure
	}
	f.name("gray: not measured")
	return f, nil
}

func distinct(points []bench.Point, of func(*bench.Point) int) []int {
	var all []int
	for i := range points {
		all = append(all, of(&points[i]))
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// distribution is how many of a contender's points reach at most what part of one large copy.
func distribution(r *bench.Report, layout bench.Layout) (*figure, error) {
	f := copies(r, fmt.Sprintf("All points by their share of one large copy, device blocks scattered, %s", layout))
	for _, d := range directions {
		var rows []bench.Row
		for i := range r.Points {
			p := &r.Points[i]
			if p.Direction != d.d || p.Layout != layout {
				continue
			}
			k := slices.IndexFunc(rows, func(row bench.Row) bool { return row.Path == p.Path })
			if k < 0 {
				k, rows = len(rows), append(rows, bench.Row{Path: p.Path})
			}
			rows[k].Points = append(rows[k].Points, *p)
		}
		if len(rows) == 0 || len(rows[0].Points) < 2 {
			continue
		}
		p := f.panel(d.title)
		p.X.Label.Text, p.Y.Label.Text = "% of one large copy", "% of the points that reach no more"
		p.Add(grid())
		for _, row := range rows {
			if err := f.steps(p, row); err != nil {
				return nil, err
			}
		}
		p.X.Min, p.X.Max, p.Y.Min, p.Y.Max = 0, max(105, p.X.Max), 0, 100
		p.X.Tick.Marker, p.Y.Tick.Marker = plot.ConstantTicks(every(20, 0, p.X.Max)), plot.ConstantTicks(every(20, 0, 100))
	}
	return f.withCommonY()
}

// steps draws the distribution of a row's points.
func (f *figure) steps(p *plot.Plot, row bench.Row) error {
	var shares []float64
	for i := range row.Points {
		shares = append(shares, 100*row.Points[i].Share)
	}
	slices.Sort(shares)
	xys := plotter.XYs{{X: shares[0], Y: 0}}
	for i, x := range shares {
		xys = append(xys, plotter.XY{X: x, Y: 100 * float64(i+1) / float64(len(shares))})
	}
	line, err := plotter.NewLine(xys)
	if err != nil {
		return fmt.Errorf("%s: %w", row.Path, err)
	}
	line.LineStyle, line.StepStyle = styleOf(row.Path).line(), plotter.PostStep
	p.Add(line)
	f.name(row.Path, line)
	return nil
}
