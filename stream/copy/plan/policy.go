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
	// Throughput finishes each batch soonest, given what is ahead of it in the stream: of an idle stream that is the
	// lowest time of the batch alone, behind a long backlog the lowest marginal cost.
	Throughput Goal = iota
	// Latency takes the lowest time of the batch alone, whatever is ahead.
	Latency
	// Background keeps to a bound on thread blocks and to a share of the link, and takes the fewest thread blocks that
	// reach the share on an idle device. That copies turn out slower beside other work does not make it take more.
	Background
)

var goalNames = [...]string{"throughput", "latency", "background"}

// String returns the name as options use it.
func (g Goal) String() string {
	if int(g) < len(goalNames) {
		return goalNames[g]
	}
	return fmt.Sprintf("goal(%d)", uint8(g))
}

// Defaults of the background policy.
const (
	DefaultMaxCTAs   = 8
	DefaultLinkShare = 0.8
)

// Policy says what a stream's batches are chosen for. The zero value is Throughput without bounds.
type Policy struct {
	Goal Goal
	// MaxCTAs bounds the thread blocks of a path, under any goal. Thirty-two of staged copies, which work a small part of the
	// time, count as one. Zero: no bound, and under Background DefaultMaxCTAs.
	MaxCTAs int
	// LinkShare is the share of the link's rate that Background asks for and keeps to, above 0 and up to 1. Zero:
	// DefaultLinkShare. Other goals ignore it.
	LinkShare float64
}

// ParseGoal reads what Goal.String writes.
func ParseGoal(s string) (Goal, error) {
	for i, name := range goalNames {
		if s == name {
			return Goal(i), nil
		}
	}
	return 0, fmt.Errorf("there is no policy %q: it is %s: %w", s, strings.Join(goalNames[:], ", "), errdefs.ErrInvalid)
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
	if p.Goal != Background {
		return p
	}
	if p.MaxCTAs == 0 {
		p.MaxCTAs = DefaultMaxCTAs
	}
	if p.LinkShare == 0 {
		p.LinkShare = DefaultLinkShare
	}
	return p
}
