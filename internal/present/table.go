package present

import (
	"strings"
	"unicode/utf8"
)

const (
	indent = "  "
	gutter = 2
	// leastProse is the minimum readable width of a column of text.
	leastProse = 24
)

// Table is a table with aligned columns.
type Table struct {
	Head []string // nil: no header
	Rows [][]string
	// Keys is the number of leading columns that are repeated if the table is split. Zero means
	// one.
	Keys int
	// Prose means that the last column is text that may be wrapped.
	Prose bool
	// Right lists the right-aligned columns: the letter at the column's index is 'r'.
	Right string
}

// Row adds a row.
func (t *Table) Row(cells ...string) { t.Rows = append(t.Rows, cells) }

// Table writes t. It writes nothing if t has no rows.
func (p *Page) Table(t *Table) {
	if len(t.Rows) == 0 {
		return
	}
	rows := t.Rows
	if t.Head != nil {
		rows = append([][]string{t.Head}, rows...)
	}
	widths := columnWidths(rows)
	keys := min(max(t.Keys, 1), len(widths))
	for first := keys; ; {
		columns, next := t.fit(p.screen.Width, widths, keys, first)
		if first > keys {
			p.Gap()
		}
		for i, row := range rows {
			p.row(t, row, columns, widths, i == 0 && t.Head != nil)
		}
		if first = next; first >= len(widths) {
			return
		}
	}
}

func columnWidths(rows [][]string) []int {
	var widths []int
	for _, row := range rows {
		for i, cell := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	return widths
}

// fit returns the columns of one part of a split table: the keys, and as many columns from first on
// as fit, but at least one. next is the first column of the next part.
func (t *Table) fit(screen int, widths []int, keys, first int) (columns []int, next int) {
	used := len(indent)
	for i := range keys {
		columns = append(columns, i)
		used += widths[i] + gutter
	}
	for next = first; next < len(widths); next++ {
		w := widths[next]
		if t.Prose && next == len(widths)-1 {
			w = 0 // too wide: this column goes into the next part
		}
		if screen > 0 && next > first && used+w > screen {
			break
		}
		columns = append(columns, next)
		used += w + gutter
	}
	return columns, next
}

// row writes the given columns of a row.
func (p *Page) row(t *Table, row []string, columns, widths []int, head bool) {
	var b strings.Builder
	b.WriteString(indent)
	at := len(indent)
	var prose []string
	for k, i := range columns {
		var cell string
		if i < len(row) {
			cell = row[i]
		}
		if t.Prose && i == len(widths)-1 {
			if cell == "" {
				break
			}
			if p.screen.Width > 0 && p.screen.Width-at < leastProse {
				at = 2 * len(indent)
				p.line(b.String())
				b.Reset()
				b.WriteString(strings.Repeat(" ", at))
			}
			prose = wrap(cell, p.screen.Width, at)
			b.WriteString(p.head(head, prose[0]))
			break
		}
		pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
		if i < len(t.Right) && t.Right[i] == 'r' {
			b.WriteString(pad + p.head(head, cell))
		} else {
			b.WriteString(p.head(head, cell) + pad)
		}
		if k < len(columns)-1 {
			b.WriteString(strings.Repeat(" ", gutter))
		}
		at += widths[i] + gutter
	}
	p.line(b.String())
	for _, more := range prose[min(1, len(prose)):] {
		p.line(strings.Repeat(" ", at) + more)
	}
}

// head formats a cell of the header.
func (p *Page) head(is bool, cell string) string {
	if !is || cell == "" {
		return cell
	}
	return p.paint(bold, cell)
}
