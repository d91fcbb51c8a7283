package bench

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// table is a table in Markdown whose columns are aligned.
type table struct{ *tabwriter.Writer }

func newTable(w io.Writer, first string) table {
	t := table{tabwriter.NewWriter(w, 0, 0, 1, ' ', 0)}
	t.put("| %s\t", first)
	return t
}

// put writes cells, each ended by a tab, or the end of a row.
func (t table) put(format string, args ...any) { fmt.Fprintf(t.Writer, format, args...) }

// rule ends the header of a table of so many further columns.
func (t table) rule(columns int) {
	t.put("|\n|---\t%s|\n", strings.Repeat("|---\t", columns))
}

func (t table) end() { _ = t.Flush() } // into memory: it cannot fail
