package present

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// Mark says how something stands.
type Mark int

// The marks.
const (
	Plain Mark = iota
	Good       // a tick
	Warn       // it went on, but not as it should
	Bad        // a cross
)

var marks = [...]struct{ sign, color string }{Good: {"✓", "32"}, Warn: {"!", "33"}, Bad: {"✗", "31"}}

const bold = "1"

// Page is a report under way. What it holds is written by Write.
type Page struct {
	screen Screen
	b      strings.Builder
	legend [][]string
	gap    bool // an empty line comes before what comes next
}

// NewPage returns an empty page for s.
func NewPage(s Screen) *Page { return &Page{screen: s} }

// Verdict writes what came of it all, in a sentence or two.
func (p *Page) Verdict(m Mark, format string, args ...any) {
	p.marked("", m, bold, fmt.Sprintf(format, args...))
}

// Check writes one thing that was looked at, and how it stands.
func (p *Page) Check(m Mark, format string, args ...any) {
	lead := indent
	if m == Plain {
		lead += "  " // as wide as a mark
	}
	p.marked(lead, m, "", fmt.Sprintf(format, args...))
}

// Text writes a paragraph.
func (p *Page) Text(format string, args ...any) {
	p.marked("", Plain, "", fmt.Sprintf(format, args...))
}

// Heading begins a part of the page.
func (p *Page) Heading(format string, args ...any) {
	p.Gap()
	p.marked("", Plain, bold, fmt.Sprintf(format, args...))
}

// Gap leaves a line empty, unless one is or nothing comes after.
func (p *Page) Gap() { p.gap = p.b.Len() > 0 }

// Define puts a word into the legend, once.
func (p *Page) Define(word, meaning string) {
	for _, row := range p.legend {
		if row[0] == word {
			return
		}
	}
	p.legend = append(p.legend, []string{word, meaning})
}

// Write writes the page, with its legend at the end, to w. The page is empty then.
func (p *Page) Write(w io.Writer) error {
	if len(p.legend) > 0 {
		p.Gap()
		p.Table(&Table{Rows: p.legend, Prose: true})
	}
	text := p.b.String()
	*p = Page{screen: p.screen}
	if _, err := io.WriteString(w, text); err != nil {
		return fmt.Errorf("print report: %w", err)
	}
	return nil
}

// marked writes text behind a mark, both behind lead; further lines are below the text.
func (p *Page) marked(lead string, m Mark, style, text string) {
	hang := lead
	if sign := marks[m].sign; sign != "" {
		lead += p.paint(marks[m].color, sign) + " "
		hang += "  "
	}
	for i, line := range wrap(text, p.screen.Width, utf8.RuneCountInString(hang)) {
		if i > 0 {
			lead = hang
		}
		p.line(lead + p.paint(style, line))
	}
}

func (p *Page) line(s string) {
	if p.gap {
		p.b.WriteByte('\n')
		p.gap = false
	}
	p.b.WriteString(strings.TrimRight(s, " "))
	p.b.WriteByte('\n')
}

// paint gives s a color or weight, of ANSI's numbers.
func (p *Page) paint(style, s string) string {
	if !p.screen.Color || style == "" {
		return s
	}
	return "\x1b[" + style + "m" + s + "\x1b[0m"
}

// wrap breaks text between words into lines of width less indent. A word that is longer has a line of its own. Line breaks of text stay.
func wrap(text string, width, indent int) []string {
	var lines []string
	for part := range strings.SplitSeq(text, "\n") {
		if width <= 0 || indent+utf8.RuneCountInString(part) <= width {
			lines = append(lines, part)
			continue
		}
		line, n := "", 0
		for _, word := range strings.Fields(part) {
			long := utf8.RuneCountInString(word)
			switch {
			case line == "":
				line, n = word, long
			case indent+n+1+long <= width:
				line, n = line+" "+word, n+1+long
			default:
				lines = append(lines, line)
				line, n = word, long
			}
		}
		lines = append(lines, line)
	}
	return lines
}
