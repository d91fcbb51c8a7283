package target

import (
	"fmt"
	"io"
	"strings"

	"github.com/kvlane/kvlane/bench"
	"github.com/kvlane/kvlane/internal/present"
)

func applies(r *bench.Report) bool {
	return !r.Machine.Simulated && strings.Contains(r.Machine.Device, Device)
}

var marks = map[State]present.Mark{Met: present.Good, Missed: present.Bad, NotMeasured: present.Warn}

// WriteText writes the judgment for people, a line a target.
func (j *Judgment) WriteText(w io.Writer) error {
	p, mark := present.NewPage(present.ScreenOf(w)), present.Good
	if j.Met < j.Total {
		mark = present.Warn
	}
	p.Verdict(mark, "%d of %d targets met on %s, %d missed, %d not measured", j.Met, j.Total, present.Name(j.Device), j.Missed, j.Total-j.Met-j.Missed)
	switch {
	case j.Simulated:
		p.Check(present.Warn, "SIMULATED: the figures describe the simulated device, and what they meet or miss means nothing.")
	case !j.Applies:
		p.Check(present.Warn, "The targets are of an %s, and this is %s.", Device, present.Name(j.Device))
	}
	p.Gap()
	for i := range j.Targets {
		t := &j.Targets[i]
		note := t.Note
		if note != "" {
			note = " (" + note + ")"
		}
		p.Check(marks[t.State], "%s: %s, to reach %s%s", t.Claim, t.measured(), t.limit(), note)
	}
	return p.Write(w)
}

func (r *Result) limit() string {
	sign := "<="
	if r.AtLeast {
		sign = ">="
	}
	return fmt.Sprintf("%s %g %s", sign, r.Limit, r.Unit)
}

func (r *Result) measured() string {
	switch {
	case r.State == NotMeasured:
		return string(NotMeasured)
	case r.Unit == Allocs:
		return fmt.Sprintf("%.4f", r.Measured)
	}
	return fmt.Sprintf("%.1f", r.Measured)
}
