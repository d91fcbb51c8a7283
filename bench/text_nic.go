package bench

import (
	"fmt"
	"slices"

	"github.com/kvlane/kvlane/internal/present"
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
