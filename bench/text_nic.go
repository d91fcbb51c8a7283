package bench

import (
	"fmt"
	"slices"
	"strings"
)

// softNote is said wherever figures of NICs in software are.
const softNote = "The NICs are software (nic-soft), whose bytes copy streams move: this is what a stream over NICs costs, and no figure of a NIC."

// nicRivals are what copies by NICs are shown beside: by CUDA one call a block, and by the stream's own choice.
var nicRivals = []string{string(OneCopyEach), string(DriverBatch), Auto}

// NICRows returns what was copied by NICs, of hardware or in software, with copies by CUDA before it: for each contender the
// point with the most blocks of every block size. None where no NIC was measured.
func (r *Report) NICRows(d Direction, l Layout, soft bool) []Row {
	with := &Report{Points: r.Points}
	if soft {
		with.Points = slices.Concat(r.Points, r.Soft)
	}
	some := false
	rows := slices.DeleteFunc(with.BySize(d, l), func(row Row) bool {
		c, err := ParseContender(row.Path)
		if err == nil && c.NIC() && c.Soft() == soft {
			some = true
			return false
		}
		return !slices.Contains(nicRivals, row.Path)
	})
	if !some {
		return nil
	}
	return rows
}

// nics writes copies by NICs beside copies by CUDA, and how many processors they kept busy.
func (r *Report) nics(b *strings.Builder) {
	for _, soft := range []bool{false, true} {
		said := false
		for _, layout := range hostLayouts {
			for _, d := range []Direction{ToDevice, ToHost, Both} {
				rows := r.NICRows(d, layout, soft)
				if len(rows) == 0 {
					continue
				}
				title := fmt.Sprintf("Through NICs, %s, %s", layout, directionTexts[d])
				if soft {
					title = fmt.Sprintf("Through NICs in software, %s, %s", layout, directionTexts[d])
				}
				if soft && !said {
					said = true
					fmt.Fprintf(b, "\n%s\n", softNote)
				}
				r.bandwidths(b, rows, title)
				r.busy(b, rows)
			}
		}
	}
}

// busy writes the processors that each of rows kept busy, as one line a row.
func (r *Report) busy(b *strings.Builder, rows []Row) {
	fmt.Fprintf(b, "\nof %d CPUs, busy:", r.Machine.CPUs)
	for i, row := range rows {
		var list []string
		for j := range row.Points {
			list = append(list, fmt.Sprintf("%.1f", row.Points[j].BusyCPUs))
		}
		if i > 0 {
			b.WriteString(";")
		}
		fmt.Fprintf(b, " %s %s", row.Path, strings.Join(list, " "))
	}
	b.WriteString("\n")
}
