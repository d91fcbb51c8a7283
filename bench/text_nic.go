package bench

import (
	"fmt"
	"slices"

	"github.com/kvlane/kvlane/internal/present"
)

// softNote is printed with results of software NICs.
const softNote = "The NICs are software (nic-soft), and copy streams move their bytes: the figures show the cost of a stream over NICs, not of a NIC."

// nicRivals are the contenders shown for comparison in the tables of NICs.
var nicRivals = []string{string(OneCopyEach), string(DriverBatch), Auto}

// NICRows returns the rows of nicRivals and of copies by hardware or software NICs. For each
// contender and block size they have the point with the most blocks. It returns nil if no NIC was
// measured.
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

// nics writes tables of copies by NICs and by CUDA, with the processors that they used.
func (r *Report) nics(p *present.Page) {
	for _, soft := range []bool{false, true} {
		what := "Through NICs"
		if soft {
			what = "Through NICs in software"
		}
		for _, layout := range hostLayouts {
			for _, d := range []Direction{ToDevice, ToHost, Both} {
				rows := r.NICRows(d, layout, soft)
				title := fmt.Sprintf("%s, %s, %s", what, layout, directionTexts[d])
				r.bandwidths(p, rows, title)
				grid(p, rows, fmt.Sprintf("%s: CPUs busy, of %d", title, r.Machine.CPUs), func(at *Point) string { return fmt.Sprintf("%.1f", at.BusyCPUs) })
			}
		}
	}
}
