package plan

import (
	"errors"
	"fmt"
	"strings"

	"github.com/kvlane/kvlane/errdefs"
)

// Goal is the objective of a policy.
type Goal uint8

// The goals.
const (
	// Unset means no goal. A planner, or a stream that is opened without an engine, then uses
	// Throughput. An engine uses Balanced for loads and Background for dumps.
	Unset Goal = iota
	// Throughput completes each batch as early as possible, including the work ahead of it in the
	// stream. In an idle stream it selects the lowest time of the batch alone, behind a long
	// backlog the lowest marginal cost.
	Throughput
	// Latency selects the lowest time of the batch alone and ignores the work ahead.
	Latency
	// Balanced weighs the time of a batch against the loss of concurrent work. It suits loads that
	// a model waits for while another model computes.
	Balanced
	// Background gives interference a several times higher weight and uses only a share of the
	// link.
	Background
)

var goalNames = [...]string{"unset", "throughput", "latency", "balanced", "background"}

// weights are the weights of interference, relative to a batch's own time. A path that costs a
// model a tenth of its rate counts as twice as slow under Balanced, and as six times as slow under
// Background.
var weights = [len(goalNames)]float64{Balanced: 10, Background: 50}

// Weighs reports whether the goal takes interference with concurrent work into account.
func (g Goal) Weighs() bool { return int(g) < len(weights) && weights[g] > 0 }

// String returns the name in options.
func (g Goal) String() string {
	if int(g) < len(goalNames) {
		return goalNames[g]
	}
	return fmt.Sprintf("goal(%d)", uint8(g))
}

// DefaultLinkShare is the default of Policy.LinkShare.
const DefaultLinkShare = 0.8

// Policy controls the choices for a stream's batches. The zero value has no bounds and no goal.
type Policy struct {
	Goal Goal
	// MaxCTAs bounds the thread blocks of a path, under any goal. 32 thread blocks of staged copies
	// count as one, because they are busy for a small part of the time. Zero: no bound.
	MaxCTAs int
	// LinkShare is the maximum share of the link's rate for Background copies, above 0 and up to 1.
	// Zero: DefaultLinkShare. Other goals ignore it.
	LinkShare float64
}

// ParseGoal returns the goal with the given name. Unset has no name.
func ParseGoal(s string) (Goal, error) {
	for g := Throughput; int(g) < len(goalNames); g++ {
		if s == goalNames[g] {
			return g, nil
		}
	}
	return 0, fmt.Errorf("unknown policy %q: must be %s: %w", s, strings.Join(goalNames[Throughput:], ", "), errdefs.ErrInvalid)
}

// Validate returns an error for every field that is out of range.
func (p Policy) Validate() error {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("policy: "+format+": %w", append(args, errdefs.ErrInvalid)...))
	}
	if int(p.Goal) >= len(goalNames) {
		bad("unknown %s", p.Goal)
	}
	if p.MaxCTAs < 0 {
		bad("at most %d thread blocks", p.MaxCTAs)
	}
	if !(p.LinkShare >= 0 && p.LinkShare <= 1) {
		bad("link share %v is not between 0 and 1", p.LinkShare)
	}
	return errors.Join(errs...)
}

func (p Policy) withDefaults() Policy {
	if p.Goal == Unset {
		p.Goal = Throughput
	}
	if p.Goal == Background && p.LinkShare == 0 {
		p.LinkShare = DefaultLinkShare
	}
	return p
}
