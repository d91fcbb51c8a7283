package chart

import (
	"bytes"
	"fmt"
	"html"
	"io"
	"strings"

	"golang.org/x/image/font"
	"golang.org/x/image/font/sfnt"
	"golang.org/x/image/math/fixed"
	plotfont "gonum.org/v1/plot/font"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/vgsvg"
)

// outlined is an SVG whose letters are shapes: it looks the same wherever it is shown, whatever fonts are there. What is written in it is
// in its description, for those who do not see it and for searches.
type outlined struct {
	*vgsvg.Canvas
	title string
	texts []string
}

// FillString implements vg.Canvas.
func (c *outlined) FillString(face plotfont.Face, at vg.Point, s string) {
	c.texts = append(c.texts, s)
	if p := outline(face, at, s); len(p) > 0 {
		c.Fill(p)
	}
}

// outline returns the shape of a text that begins at a point of its base line, with the advances that plot measures it by. What the font
// lacks is its sign for that.
func outline(face plotfont.Face, at vg.Point, s string) vg.Path {
	var path vg.Path
	var buf sfnt.Buffer
	em := fixed.Int26_6(face.Face.UnitsPerEm())
	scale := face.Font.Size / vg.Length(em)
	x, prev, some := fixed.Int26_6(0), sfnt.GlyphIndex(0), false
	for _, r := range s {
		glyph, err := face.Face.GlyphIndex(&buf, r)
		if err != nil {
			continue
		}
		if kern, err := face.Face.Kern(&buf, prev, glyph, em, font.HintingNone); some && err == nil {
			x += kern
		}
		segments, err := face.Face.LoadGlyph(&buf, glyph, em, nil)
		if err != nil {
			continue
		}
		path = contours(path, segments, func(p fixed.Point26_6) vg.Point { // the font's y goes down
			return vg.Point{X: at.X + vg.Length(x+p.X)*scale, Y: at.Y - vg.Length(p.Y)*scale}
		})
		if wide, err := face.Face.GlyphAdvance(&buf, glyph, em, font.HintingNone); err == nil {
			x += wide
		}
		prev, some = glyph, true
	}
	return path
}

// contours adds a glyph's to a path.
func contours(path vg.Path, segments sfnt.Segments, at func(fixed.Point26_6) vg.Point) vg.Path {
	open := false
	for i := range segments {
		a := &segments[i].Args
		switch segments[i].Op {
		case sfnt.SegmentOpMoveTo:
			if open {
				path.Close()
			}
			path.Move(at(a[0]))
			open = true
		case sfnt.SegmentOpLineTo:
			path.Line(at(a[0]))
		case sfnt.SegmentOpQuadTo:
			path.QuadTo(at(a[0]), at(a[1]))
		case sfnt.SegmentOpCubeTo:
			path.CubeTo(at(a[0]), at(a[1]), at(a[2]))
		}
	}
	if open {
		path.Close()
	}
	return path
}

// WriteTo implements io.WriterTo.
func (c *outlined) WriteTo(w io.Writer) (int64, error) {
	var b bytes.Buffer
	if _, err := c.Canvas.WriteTo(&b); err != nil {
		return 0, err
	}
	head, rest, found := strings.Cut(b.String(), "<g ")
	if !found {
		return 0, fmt.Errorf("an SVG without a group")
	}
	text := fmt.Sprintf("%s<title>%s</title>\n<desc>%s</desc>\n<g %s", head, html.EscapeString(c.title), html.EscapeString(strings.Join(c.texts, "\n")), rest)
	n, err := io.WriteString(w, text)
	return int64(n), err
}
