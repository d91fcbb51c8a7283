package target

import (
	"fmt"

	"github.com/kvlane/kvlane/bench"
)

// Device is the GPU that the targets are of, as its driver names it, in part.
const Device = "H100"

// State says how a target fared.
type State string

// The states.
const (
	Met         State = "met"
	Missed      State = "missed"
	NotMeasured State = "not measured"
)

// Unit is what a target's figures are in.
type Unit string

// The units.
const (
	PercentOfC Unit = "% of C"
	Percent    Unit = "%"
	Micros     Unit = "us"
	Nanos      Unit = "ns a block"
	GBps       Unit = "GB/s"
	Allocs     Unit = "allocations a block"
)

// Result is a target and how it fared.
type Result struct {
	ID       string  `json:"id"`       // does not change from one version to the next: "share/scattered/h2d/4 KiB"
	Claim    string  `json:"claim"`    // what it is about
	Measured float64 `json:"measured"` // zero if State is NotMeasured
	Limit    float64 `json:"limit"`
	// AtLeast says that Limit is the least that meets the target; otherwise it is the most.
	AtLeast bool   `json:"at_least"`
	Unit    Unit   `json:"unit"`
	State   State  `json:"state"`
	Note    string `json:"note,omitempty"` // why it was not measured, or what else to know
}

// Judgment is a report judged.
type Judgment struct {
	Device    string `json:"device"`
	Simulated bool   `json:"simulated"`
	// Applies is whether the report is of the GPU that the targets are of.
	Applies bool     `json:"applies"`
	Met     int      `json:"met"`
	Missed  int      `json:"missed"`
	Total   int      `json:"total"`
	Targets []Result `json:"targets"`
}

// Judge judges a report by every target.
func Judge(r *bench.Report) *Judgment {
	j := &Judgment{Device: r.Machine.Device, Simulated: r.Machine.Simulated, Applies: applies(r)}
	for _, part := range []func(*bench.Report) []Result{shares, regrets, latencies, beside, checksums, submit, peers} {
		j.Targets = append(j.Targets, part(r)...)
	}
	j.Total = len(j.Targets)
	for i := range j.Targets {
		switch j.Targets[i].State {
		case Met:
			j.Met++
		case Missed:
			j.Missed++
		case NotMeasured:
		}
	}
	return j
}

// atLeast begins a result whose figure should be large, atMost one whose figure should be small.
func atLeast(limit float64, u Unit, id, claim string, args ...any) Result {
	return Result{ID: id, Claim: fmt.Sprintf(claim, args...), Limit: limit, AtLeast: true, Unit: u, State: NotMeasured}
}

func atMost(limit float64, u Unit, id, claim string, args ...any) Result {
	r := atLeast(limit, u, id, claim, args...)
	r.AtLeast = false
	return r
}

// of judges the result by what was measured.
func (r Result) of(v float64) Result {
	r.Measured, r.State = v, Missed
	if r.AtLeast && v >= r.Limit || !r.AtLeast && v <= r.Limit {
		r.State = Met
	}
	return r
}

// note adds a remark, or the reason why there is nothing to judge.
func (r Result) note(format string, args ...any) Result {
	r.Note = fmt.Sprintf(format, args...)
	return r
}
