package topology

import (
	"cmp"
	"encoding/xml"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"
)

// Dimensions in pixels. The font is monospaced, so that text has the same width in all viewers.
const (
	lineHeight = 16
	charWidth  = 7.3 // width of a 12-pixel character in the widest common font
	padding    = 10
	laneHeight = 22 // distance between NVLinks
)

// The colors are those of Okabe and Ito, lighter behind text.
const style = `
text { font: 12px "DejaVu Sans Mono", Menlo, Consolas, "Liberation Mono", monospace; fill: #000 }
.head { font-weight: bold }
rect { fill: #fff; stroke: #999 }
.paper { stroke: none }
.node { fill: #f0f0f0; stroke: #555 }
.switch { fill: #fbf3df; stroke: #e69f00 }
.gpu { fill: #d3efe6; stroke: #009e73; stroke-width: 1.5 }
.nic { fill: #dbeefa; stroke: #0072b2; stroke-width: 1.5 }
.down { fill: #eee; stroke-dasharray: 4 3 }
.link { fill: none; stroke: #d55e00; stroke-width: 2 }
.bar { fill: #fbe3d3; stroke: #d55e00; stroke-width: 1.5 }
`

// box is a rectangle with lines of text and rows of boxes below them. The last row is at the
// bottom.
type box struct {
	class string // empty: the box is not drawn
	lines []string
	rows  [][]*box
	gpu   int // index in Machine.GPUs, or -1
	x, y  float64
	w, h  float64
}

// fit sets the size of the box, and the sizes and positions of its contents.
func (b *box) fit() {
	pad := float64(padding)
	if b.class == "" {
		pad = 0
	}
	y := pad + float64(len(b.lines))*lineHeight
	for _, l := range b.lines {
		b.w = max(b.w, float64(len([]rune(l)))*charWidth+2*pad)
	}
	for i, row := range b.rows {
		if i > 0 || len(b.lines) > 0 {
			y += padding
		}
		x, deepest := pad, 0.0
		for j, c := range row {
			c.fit()
			if j > 0 {
				x += padding
			}
			c.x = x
			x += c.w
			deepest = max(deepest, c.h)
		}
		for _, c := range row {
			c.y = y + deepest - c.h
		}
		y += deepest
		b.w = max(b.w, x+pad)
	}
	b.h = y + pad
}

// boxOf returns the box for a part of the machine. NICs are drawn above GPUs, so that only NVLinks
// are below GPUs.
func (m *Machine) boxOf(t *branch) *box {
	switch {
	case t.gpu >= 0:
		return &box{class: "gpu", lines: []string{m.GPUs[t.gpu].title(), m.GPUs[t.gpu].model(), m.GPUs[t.gpu].PCI}, gpu: t.gpu}
	case t.nic != nil:
		b := &box{class: "nic", lines: append([]string{t.nic.Name}, strings.Split(t.nic.where(), ", ")...), gpu: -1}
		if t.nic.Down {
			b.class = "nic down"
		}
		return b
	}
	b := &box{class: [...]string{"node", "bridge", "switch"}[min(t.depth, 2)], lines: strings.Split(t.title(), ", "), gpu: -1}
	var nics, gpus, deeper []*box
	for _, c := range t.below {
		switch in := m.boxOf(c); {
		case c.nic != nil:
			nics = append(nics, in)
		case c.gpu >= 0:
			gpus = append(gpus, in)
		default:
			deeper = append(deeper, in)
		}
	}
	rows := slices.DeleteFunc([][]*box{nics, gpus}, func(r []*box) bool { return len(r) == 0 })
	if len(deeper) > 0 && len(rows) > 0 {
		deeper = append(deeper, &box{rows: rows, gpu: -1})
	}
	if len(deeper) > 0 {
		rows = [][]*box{deeper}
	}
	b.rows = rows
	return b
}

// picture writes the elements of the SVG.
type picture struct {
	b    strings.Builder
	gpus map[int]*box // boxes with absolute positions
}

func (p *picture) rect(class string, x, y, w, h float64) {
	fmt.Fprintf(&p.b, "<rect class=%q x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" rx=\"4\"/>\n", class, x, y, w, h)
}

func (p *picture) text(class string, x, y float64, s string) {
	fmt.Fprintf(&p.b, "<text class=%q x=\"%.1f\" y=\"%.1f\">", class, x, y)
	_ = xml.EscapeText(&p.b, []byte(s)) // writing to memory cannot fail
	p.b.WriteString("</text>\n")
}

func (p *picture) path(format string, args ...any) {
	fmt.Fprintf(&p.b, "<path class=\"link\" d=\"%s\"/>\n", fmt.Sprintf(format, args...))
}

// box draws b and its contents. x and y are the position of the enclosing box.
func (p *picture) box(b *box, x, y float64) {
	b.x, b.y = b.x+x, b.y+y
	if b.gpu >= 0 {
		p.gpus[b.gpu] = b
	}
	if b.class != "" {
		p.rect(b.class, b.x, b.y, b.w, b.h)
	}
	for i, l := range b.lines {
		class := "line"
		if i == 0 {
			class = "head"
		}
		p.text(class, b.x+padding, b.y+padding+lineHeight*(float64(i)+0.75), l)
	}
	for _, row := range b.rows {
		for _, c := range row {
			p.box(c, b.x, b.y)
		}
	}
}

// links draws the NVLinks below y and returns the y coordinate below them. Links through switches
// share one bar. Every other link has its own row.
func (p *picture) links(m *Machine, y float64) float64 {
	peers := make(map[int][]int) // peers of each GPU, from left to right
	switched := make(map[int]int)
	var lanes []NVLink
	for _, l := range m.NVLinks {
		if l.Switch {
			switched[l.A], switched[l.B] = max(switched[l.A], l.Links), max(switched[l.B], l.Links)
			continue
		}
		lanes = append(lanes, l)
		peers[l.A], peers[l.B] = append(peers[l.A], l.B), append(peers[l.B], l.A)
	}
	for gpu, all := range peers { // sorted so that the lines of one GPU do not cross
		slices.SortFunc(all, func(a, b int) int { return cmp.Or(compareBool(a > gpu, b > gpu), cmp.Compare(b, a)) })
	}
	end := func(gpu, peer int) (x, y float64) {
		b := p.gpus[gpu]
		return b.x + b.w*float64(1+slices.Index(peers[gpu], peer))/float64(1+len(peers[gpu])), b.y + b.h
	}
	// Draw short links first.
	slices.SortStableFunc(lanes, func(a, b NVLink) int { return (a.B - a.A) - (b.B - b.A) })
	for _, l := range lanes {
		y += laneHeight
		ax, ay := end(l.A, l.B)
		bx, by := end(l.B, l.A)
		p.path("M%.1f %.1fV%.1fH%.1fV%.1f", ax, ay, y, bx, by)
		s := "NVLink" + l.times()
		w := float64(len(s))*charWidth + 8
		p.rect("paper", (ax+bx-w)/2, y-lineHeight/2, w, lineHeight)
		p.text("line", (ax+bx-w)/2+4, y+4, s)
	}
	return p.switched(switched, y)
}

// switched draws the links from GPUs to switches.
func (p *picture) switched(links map[int]int, y float64) float64 {
	if len(links) == 0 {
		return y
	}
	y += 2 * laneHeight
	left, right := math.Inf(1), 0.0
	for _, gpu := range slices.Sorted(maps.Keys(links)) {
		b := p.gpus[gpu]
		left, right = min(left, b.x), max(right, b.x+b.w)
		p.path("M%.1f %.1fV%.1f", b.x+b.w/2, b.y+b.h, y)
		p.text("line", b.x+b.w/2+5, y-6, strings.TrimSpace((&NVLink{Links: links[gpu]}).times()))
	}
	p.rect("bar", left, y, right-left, lineHeight+padding)
	p.text("head", left+padding, y+lineHeight+1, "NVLink switch")
	return y + lineHeight + padding
}

// times returns the number of links, for example " x4", or "" if it is unknown.
func (l *NVLink) times() string {
	if l.Links == 0 {
		return ""
	}
	return fmt.Sprintf(" x%d", l.Links)
}

// WriteSVG draws the machine as SVG: NUMA nodes, PCIe switches, GPUs and NICs are nested boxes,
// NVLinks are lines. It returns the error of w.
func (m *Machine) WriteSVG(w io.Writer) error {
	p := picture{gpus: make(map[int]*box)}
	whole := &box{gpu: -1, rows: [][]*box{nil}}
	for _, t := range m.trees() {
		whole.rows[0] = append(whole.rows[0], m.boxOf(t))
	}
	whole.fit()
	p.box(whole, padding, padding)
	height := p.links(m, padding+whole.h) + padding
	width := whole.w + 2*padding
	if _, err := fmt.Fprintf(w, "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" viewBox=\"0 0 %[1]f %[2]f\">\n<style>%s</style>\n"+
		"<rect class=\"paper\" width=\"100%%\" height=\"100%%\"/>\n%s</svg>\n", width, height, style, p.b.String()); err != nil {
		return fmt.Errorf("write picture of the topology: %w", err)
	}
	return nil
}
