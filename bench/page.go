package bench

import (
	"fmt"
	"strings"

	"github.com/kvlane/kvlane/internal/present"
)

// Head is the beginning of the text report of every benchmark.
type Head struct {
	Incomplete string   // reason for which the run ended early
	Notes      []string // remarks about the results
	Missing    []Missing
}

// namedPlaces is the maximum number of places that the text report lists for each reason. The JSON
// report lists all.
const namedPlaces = 6

// LeftOut adds places that did not fit the budget.
func (h *Head) LeftOut(places []string, budgetSeconds float64) {
	for _, p := range places {
		h.Missing = append(h.Missing, Missing{Path: p, Reason: fmt.Sprintf("it did not fit the budget of %g s", budgetSeconds)})
	}
}

// Print writes the verdict and the restrictions. Each reason is printed once.
func (h *Head) Print(p *present.Page, verdict string) {
	mark := present.Good
	if h.Incomplete != "" {
		p.Verdict(present.Bad, "INCOMPLETE: %s. The figures below were measured before.", h.Incomplete)
		mark = present.Plain
	}
	p.Verdict(mark, "%s", verdict)
	for _, n := range h.Notes {
		p.Check(present.Warn, "%s", n)
	}
	var reasons []string
	of := map[string][]string{}
	for _, m := range h.Missing {
		if of[m.Reason] == nil {
			reasons = append(reasons, m.Reason)
		}
		of[m.Reason] = append(of[m.Reason], m.Path)
	}
	for _, why := range reasons {
		paths := of[why]
		if n := len(paths) - namedPlaces; n > 0 {
			paths = append(paths[:namedPlaces], fmt.Sprintf("and %d more, see the JSON report", n))
		}
		p.Check(present.Warn, "not measured: %s: %s", strings.Join(paths, "; "), why)
	}
	p.Gap()
}

// Rows adds the facts to a table of names and values.
func (f *Facts) Rows(t *present.Table) {
	t.Row("device", fmt.Sprintf("%s (%s, driver %s)", present.Name(f.Device), f.Driver, f.DriverVersion))
	if f.UUID != "" {
		t.Row("uuid", f.UUID)
	}
	t.Row("machine", fmt.Sprintf("%d CPUs, %s", f.CPUs, f.GoVersion))
	date := f.Date.Format("2006-01-02 15:04 MST")
	if f.Seconds > 0 {
		date += fmt.Sprintf(", %.1f s", f.Seconds)
	}
	t.Row("date", date)
	if f.Command != "" {
		t.Row("command", present.Name(f.Command))
	}
}

// Text returns the rates of the large copies by direction.
func (r *Reference) Text() string {
	var parts []string
	for _, d := range []Direction{ToDevice, ToHost, Both} {
		if c := r.Of(d); c.Samples > 0 {
			parts = append(parts, fmt.Sprintf("%s %s (%s to %s)", d, present.Rate(c.GBps), present.Rate(c.Low), present.Rate(c.High)))
		}
	}
	return strings.Join(parts, ", ")
}

// DefineC adds the definition of C, the large copy, to the legend.
func DefineC(p *present.Page, bytes int64) {
	p.Define("C", fmt.Sprintf("one large copy, %s: the median GB/s of all (5th to 95th percentile); the %% of a point is of those between its own turns", BytesText(bytes)))
	p.Define(string(ToDevice), directionTexts[ToDevice])
	p.Define(string(ToHost), directionTexts[ToHost])
}
