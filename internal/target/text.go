package target

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/kvlane/kvlane/bench"
)

func applies(r *bench.Report) bool {
	return !r.Machine.Simulated && strings.Contains(r.Machine.Device, Device)
}

// WriteText writes the judgment for people, as a table in Markdown.
func (j *Judgment) WriteText(w io.Writer) error {
	var b strings.Builder
	switch {
	case j.Simulated:
		b.WriteString("SIMULATED: the figures describe the simulated device, and what they meet or miss means nothing.\n\n")
	case !j.Applies:
		fmt.Fprintf(&b, "The targets are of an %s, and this is %s.\n\n", Device, j.Device)
	}
	fmt.Fprintf(&b, "%d of %d targets met on %s, %d missed, %d not measured\n\n", j.Met, j.Total, j.Device, j.Missed, j.Total-j.Met-j.Missed)
	tw := tabwriter.NewWriter(&b, 0, 0, 1, ' ', 0)
	fmt.Fprint(tw, "| target\t| to reach\t| measured\t| state\t| note\t|\n|---\t|---\t|---\t|---\t|---\t|\n")
	for i := range j.Targets {
		t := &j.Targets[i]
		fmt.Fprintf(tw, "| %s\t| %s\t| %s\t| %s\t| %s\t|\n", t.Claim, t.limit(), t.measured(), t.State, t.Note)
	}
	_ = tw.Flush() // into memory: it cannot fail
	if _, err := io.WriteString(w, b.String()); err != nil {
		return fmt.Errorf("write targets: %w", err)
	}
	return nil
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
		return ""
	case r.Unit == Allocs:
		return fmt.Sprintf("%.4f", r.Measured)
	}
	return fmt.Sprintf("%.1f", r.Measured)
}
