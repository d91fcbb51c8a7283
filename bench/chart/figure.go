package chart

import (
	"fmt"
	"image/color"
	"io"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
	"gonum.org/v1/plot/vg/vgsvg"

	"github.com/kvlane/kvlane/bench"
)

// Lengths of a figure.
const (
	panelWidth  = 4.4 * vg.Inch
	panelHeight = 3.6 * vg.Inch
	titleHeight = 0.55 * vg.Inch
	legendWidth = 2.3 * vg.Inch
	dpi         = 110
)

// figure is a row of panels under a title, with one legend at their right.
type figure struct {
	title, subtitle string
	panels          []*plot.Plot
	legend          plot.Legend
	named           map[string]bool
	turns           map[string]style // of lines without a style of their own
}

// copies returns a figure about copies.
func copies(r *bench.Report, title string) *figure {
	return newFigure(&r.Machine, title, fmt.Sprintf("batches of %s", r.Setup.Form))
}

func newFigure(m *bench.Facts, title, sub string) *figure {
	sub = fmt.Sprintf("%s, driver %s, %s; %s", m.Device, m.DriverVersion, m.Date.Format("2006-01-02"), sub)
	if m.Simulated {
		sub = "SIMULATED, says nothing of hardware: " + sub
	}
	return blankFigure(title, sub)
}

func blankFigure(title, sub string) *figure {
	f := &figure{title: title, subtitle: sub, legend: plot.NewLegend(), named: make(map[string]bool)}
	f.legend.Top, f.legend.Left = true, true
	f.legend.TextStyle.Font.Size = vg.Points(9.5)
	f.legend.ThumbnailWidth = vg.Points(28)
	f.legend.Padding = vg.Points(3)
	return f
}

// panel adds a panel.
func (f *figure) panel(title string) *plot.Plot {
	p := plot.New()
	p.Title.Text = title
	p.Title.TextStyle.Font.Size = vg.Points(11)
	p.Title.Padding = vg.Points(4)
	for _, a := range []*plot.Axis{&p.X, &p.Y} {
		a.Label.TextStyle.Font.Size = vg.Points(10)
		a.Tick.Label.Font.Size = vg.Points(9)
		a.Padding = vg.Points(2)
	}
	f.panels = append(f.panels, p)
	return p
}

// name puts a name into the legend, once.
func (f *figure) name(name string, marks ...plot.Thumbnailer) {
	if !f.named[name] {
		f.named[name] = true
		f.legend.Add(name, marks...)
	}
}

func (f *figure) size() (w, h vg.Length) {
	return vg.Length(len(f.panels))*panelWidth + legendWidth, panelHeight + titleHeight
}

// shareY gives all panels the same range of y, so that they can be compared at a glance.
func (f *figure) shareY() {
	if len(f.panels) == 0 {
		return
	}
	low, high := f.panels[0].Y.Min, f.panels[0].Y.Max
	for _, p := range f.panels {
		low, high = min(low, p.Y.Min), max(high, p.Y.Max)
	}
	for _, p := range f.panels {
		p.Y.Min, p.Y.Max = low, high
	}
}

func (f *figure) draw(c vg.CanvasSizer) {
	dc := draw.New(c)
	dc.FillPolygon(color.White, []vg.Point{dc.Min, {X: dc.Max.X, Y: dc.Min.Y}, dc.Max, {X: dc.Min.X, Y: dc.Max.Y}})
	text := func(s string, points float64, y vg.Length, c color.Color) {
		style := f.legend.TextStyle
		style.Font = font.From(style.Font, vg.Points(points))
		style.Color = c
		dc.FillText(style, vg.Point{X: dc.Min.X + vg.Points(10), Y: y}, s)
	}
	text(f.title, 13, dc.Max.Y-vg.Points(19), color.Black)
	text(f.subtitle, 8.5, dc.Max.Y-vg.Points(33), gray)

	area := draw.Crop(dc, 0, -legendWidth, 0, -titleHeight)
	tiles := draw.Tiles{Rows: 1, Cols: len(f.panels), PadX: vg.Points(10), PadLeft: vg.Points(6), PadBottom: vg.Points(4)}
	for i, tile := range plot.Align([][]*plot.Plot{f.panels}, tiles, area)[0] {
		f.panels[i].Draw(tile)
	}
	width, height := f.size()
	f.legend.Draw(draw.Crop(dc, width-legendWidth+vg.Points(6), 0, 0, vg.Length(0)-(height-panelHeight)-vg.Points(18)))
}

func saveSVG(f *figure, to io.Writer) error {
	c := &outlined{Canvas: vgsvg.New(f.size()), title: f.title}
	f.draw(c)
	return save(c, to)
}

func savePNG(f *figure, to io.Writer) error {
	w, h := f.size()
	c := vgimg.PngCanvas{Canvas: vgimg.NewWith(vgimg.UseWH(w, h), vgimg.UseDPI(dpi))}
	f.draw(c)
	return save(c, to)
}

func save(c io.WriterTo, to io.Writer) error {
	_, err := c.WriteTo(to)
	return err
}
