package plan

import (
	"errors"
	"fmt"
	"strings"

	"github.com/kvlane/kvlane/errdefs"
)

// Goal is what a policy asks for.
type Goal uint8

// The goals.
const (
	// Unset names none: a stream or a planner by itself is for Throughput then, an engine as it says.
	Unset Goal = iota
	// Throughput finishes each batch soonest, given what is ahead of it in the stream: of an idle stream that is the
	// lowest time of the batch alone, behind a long backlog the lowest marginal cost.
	Throughput
	// Latency takes the lowest time of the batch alone, whatever is ahead.
	Latency
	// Balanced weighs the time of a batch against what it takes from the work beside it: loads that a model waits for, beside
	// one that computes.
	Balanced
	// Background gives that harm several times the weight, and keeps to a share of the link.
	Background
)

var goalNames = [...]string{"unset", "throughput", "latency", "balanced", "background"}

// weights say how much of its own time a batch is worth that the work beside it loses in the meantime: a path that takes a tenth
// of a model's rate counts as twice as slow as it is under Balanced, and six times under Background.
var weights = [len(goalNames)]float64{Balanced: 10, Background: 50}

// Weighs reports whether the goal counts what is taken from work beside.
func (g Goal) Weighs() bool { return int(g) < len(weights) && weights[g] > 0 }

// String returns the name as options use it.
func (g Goal) String() string {
	if int(g) < len(goalNames) {
		return goalNames[g]
	}
	return fmt.Sprintf("goal(%d)", uint8(g))
}

// DefaultLinkShare is that of the background policy.
const DefaultLinkShare = 0.8

// Policy says what a stream's batches are chosen for. The zero value bounds nothing, and leaves the goal to whoever has it.
type Policy struct {
	Goal Goal
	// MaxCTAs bounds the thread blocks of a path, under any goal. Thirty-two of staged copies, which work a small part of the
	// time, count as one. Zero: no bound.
	MaxCTAs int
	// LinkShare is the share of the link's rate that Background asks for and keeps to, above 0 and up to 1. Zero:
	// DefaultLinkShare. Other goals ignore it.
	LinkShare float64
}

// ParseGoal reads what Goal.String writes of every goal but Unset.
func ParseGoal(s string) (Goal, error) {
	for g := Throughput; int(g) < len(goalNames); g++ {
		if s == goalNames[g] {
			return g, nil
		}
	}
	return 0, fmt.Errorf("there is no policy %q: it is %s: %w", s, strings.Join(goalNames[Throughput:], ", "), errdefs.ErrInvalid)
}

// Validate reports every field that is out of range.
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
