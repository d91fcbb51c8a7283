package present

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// Mark is the status of a line.
type Mark int

// The marks.
const (
	Plain Mark = iota
	Good       // success, a tick
	Warn       // the operation continued, with a restriction
	Bad        // failure, a cross
)

var marks = [...]struct{ sign, color string }{Good: {"✓", "32"}, Warn: {"!", "33"}, Bad: {"✗", "31"}}

const bold = "1"

// Page is a report in progress. Write writes it.
type Page struct {
	screen Screen
	b      strings.Builder
	legend [][]string
	gap    bool // an empty line is due before the next line
}

// NewPage returns an empty page for s.
func NewPage(s Screen) *Page { return &Page{screen: s} }

// Verdict adds the result of the report, one or two sentences.
func (p *Page) Verdict(m Mark, format string, args ...any) {
	p.marked("", m, bold, fmt.Sprintf(format, args...))
}

// Check adds one checked item and its status.
func (p *Page) Check(m Mark, format string, args ...any) {
	lead := indent
	if m == Plain {
		lead += "  " // align with lines that have a mark
	}
	p.marked(lead, m, "", fmt.Sprintf(format, args...))
}

// Text adds a paragraph.
func (p *Page) Text(format string, args ...any) {
	p.marked("", Plain, "", fmt.Sprintf(format, args...))
}

// Heading begins a section of the page.
func (p *Page) Heading(format string, args ...any) {
	p.Gap()
	p.marked("", Plain, bold, fmt.Sprintf(format, args...))
}

// Gap adds an empty line before the next line. At the beginning of the page it does nothing.
func (p *Page) Gap() { p.gap = p.b.Len() > 0 }

// Define adds a term to the legend unless the legend has it.
func (p *Page) Define(word, meaning string) {
	for _, row := range p.legend {
		if row[0] == word {
			return
		}
	}
	p.legend = append(p.legend, []string{word, meaning})
}

// Write writes the page with its legend to w and clears it.
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

// marked writes lead, a mark and text. Further lines are aligned with the text.
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

// paint applies a color or weight, given as an ANSI code, to s.
func (p *Page) paint(style, s string) string {
	if !p.screen.Color || style == "" {
		return s
	}
	return "\x1b[" + style + "m" + s + "\x1b[0m"
}

// wrap splits text into lines that fit into width after the indent. Longer words get their own
// lines. Line breaks in text are kept.
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
