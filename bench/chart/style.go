package chart

import (
	"hash/fnv"
	"image/color"

	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"github.com/kvlane/kvlane/bench"
)

// Okabe and Ito's colors, without the yellow, which white paper swallows.
var (
	black      = color.RGBA{0x00, 0x00, 0x00, 0xff}
	orange     = color.RGBA{0xe6, 0x9f, 0x00, 0xff}
	skyBlue    = color.RGBA{0x56, 0xb4, 0xe9, 0xff}
	green      = color.RGBA{0x00, 0x9e, 0x73, 0xff}
	blue       = color.RGBA{0x00, 0x72, 0xb2, 0xff}
	vermillion = color.RGBA{0xd5, 0x5e, 0x00, 0xff}
	purple     = color.RGBA{0xcc, 0x79, 0xa7, 0xff}
	gray       = color.RGBA{0x80, 0x80, 0x80, 0xff}
	paleGray   = color.RGBA{0xd8, 0xd8, 0xd8, 0xff}
)

// style is how a contender looks.
type style struct {
	color  color.Color
	shape  draw.GlyphDrawer
	dashes []vg.Length
	width  vg.Length
}

func (s style) line() draw.LineStyle {
	return draw.LineStyle{Color: s.color, Width: s.width, Dashes: s.dashes}
}

func (s style) glyph() draw.GlyphStyle {
	return draw.GlyphStyle{Color: s.color, Shape: s.shape, Radius: vg.Points(3)}
}

var (
	dashed = []vg.Length{vg.Points(5), vg.Points(3)}
	dotted = []vg.Length{vg.Points(1.5), vg.Points(2.5)}
)

var styles = map[string]style{
	bench.Auto:           {black, draw.CircleGlyph{}, nil, vg.Points(2.5)},
	"auto:latency":       {black, draw.RingGlyph{}, dashed, vg.Points(1.5)},
	"auto:balanced":      {black, draw.PyramidGlyph{}, dashed, vg.Points(1.5)},
	"auto:background":    {black, draw.CrossGlyph{}, dotted, vg.Points(1.5)},
	"copy-engine":        {skyBlue, draw.SquareGlyph{}, nil, vg.Points(1.5)},
	"kernel":             {orange, draw.TriangleGlyph{}, nil, vg.Points(1.5)},
	"staged":             {green, draw.PlusGlyph{}, nil, vg.Points(1.5)},
	"resident":           {purple, draw.RingGlyph{}, nil, vg.Points(1.5)},
	"nic":                {green, draw.BoxGlyph{}, nil, vg.Points(2)},
	"nic-soft":           {green, draw.SquareGlyph{}, dotted, vg.Points(2)},
	"nic-channel":        {purple, draw.PyramidGlyph{}, dashed, vg.Points(1.5)},
	"nic-soft-channel":   {purple, draw.TriangleGlyph{}, dotted, vg.Points(1.5)},
	"one-copy-each":      {gray, draw.CrossGlyph{}, dashed, vg.Points(1.2)},
	"driver-batch":       {gray, draw.PlusGlyph{}, dotted, vg.Points(1.2)},
	"one large copy (C)": {black, nil, dashed, vg.Points(1)},
}

// styleOf returns the style of a contender. One that is not in the table gets a color and a shape by its name, dashed.
func styleOf(name string) style {
	if s, ok := styles[name]; ok {
		return s
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(name)) // a hash takes everything
	n := h.Sum32()
	colors := []color.Color{skyBlue, orange, green, blue, vermillion, purple}
	shapes := []draw.GlyphDrawer{draw.SquareGlyph{}, draw.TriangleGlyph{}, draw.PlusGlyph{}, draw.CrossGlyph{}}
	return style{colors[n%6], shapes[n/6%4], dashed, vg.Points(1.2)}
}

// styleInTurn returns the style of a line that the table does not know: the next that the figure has not used.
func (f *figure) styleInTurn(name string) style {
	if s, ok := f.turns[name]; ok {
		return s
	}
	n := len(f.turns)
	colors := []color.Color{black, orange, blue, green, vermillion, purple, skyBlue, gray}
	shapes := []draw.GlyphDrawer{draw.CircleGlyph{}, draw.TriangleGlyph{}, draw.SquareGlyph{}, draw.PlusGlyph{}}
	s := style{colors[n%len(colors)], shapes[n%len(shapes)], [][]vg.Length{nil, dashed, dotted}[n/len(colors)%3], vg.Points(1.5)}
	if f.turns == nil {
		f.turns = make(map[string]style)
	}
	f.turns[name] = s
	return s
}
