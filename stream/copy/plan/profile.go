package plan

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/stream"
)

// The bounds of a profile. They are far above the results of a calibration; a file that exceeds
// them is damaged.
const (
	maxSteps  = 64
	maxModels = 1024
	// maxCandidates bounds the candidates of one choice.
	maxCandidates = 40
	maxNanos      = 1e15 // eleven days
	maxCTAs       = 1 << 16
)

// Profile holds the measurements of a machine's paths. It must not change after it was passed to a
// Planner.
type Profile struct {
	Key Key
	// Source describes the origin of the measurements for users: "measured", or the machine of a
	// default profile.
	Source string
	Made   time.Time
	// GBps is the rate of one large copy by copy engine, by Direction, in 1e9 bytes per second;
	// zero if unknown.
	GBps [directions]float64
	// SumGBps is the rate at which one CPU computes mem.Paged.Sums from memory, in 1e9 bytes per
	// second; zero if unknown.
	SumGBps float64
	// Sizes and Counts are the sizes of a copy and the numbers of copies for which models have
	// times. Both are ascending.
	Sizes, Counts []int64
	Models        []Model
}

// Validate returns every problem that makes the profile unusable. The error wraps ErrInvalid.
func (p *Profile) Validate() error {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("profile: "+format+": %w", append(args, errdefs.ErrInvalid)...))
	}
	for i, steps := range [][]int64{p.Sizes, p.Counts} {
		name := [...]string{"sizes", "counts"}[i]
		switch {
		case len(steps) < 2 || len(steps) > maxSteps:
			bad("%d %s", len(steps), name)
		case steps[0] < 1 || steps[len(steps)-1] > 1<<40:
			bad("%s from %d to %d", name, steps[0], steps[len(steps)-1])
		case !slices.IsSorted(steps) || len(slices.Compact(slices.Clone(steps))) != len(steps):
			bad("%s do not ascend", name)
		}
	}
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	if len(p.Models) > maxModels {
		bad("%d models", len(p.Models))
		return errors.Join(errs...)
	}
	for d, gbps := range p.GBps {
		if !inRange(gbps, 1e6) {
			bad("%s rate %v", Direction(d), gbps)
		}
	}
	if !inRange(p.SumGBps, 1e6) {
		bad("rate of sums %v", p.SumGBps)
	}
	seen := make(map[modelID]bool, len(p.Models))
	variants := make(map[modelID]bool)
	var perChoice [directions]int
	for i := range p.Models {
		m := &p.Models[i]
		if err := m.validate(len(p.Sizes), len(p.Counts)); err != nil {
			bad("model %d: %w", i, err)
			continue
		}
		if seen[m.id()] {
			bad("model %d: duplicate of %s", i, m.id())
		}
		seen[m.id()] = true
		if v := (modelID{Path: m.Path, CTAs: m.CTAs, Dir: m.Dir}); !variants[v] {
			variants[v] = true
			perChoice[m.Dir]++
		}
	}
	for d, n := range perChoice {
		if n > maxCandidates {
			bad("%d ways to go %s", n, Direction(d))
		}
	}
	return errors.Join(errs...)
}

// modelID identifies a model.
type modelID struct {
	Path stream.Path
	CTAs int
	Dir  Direction
	Side Side
}

func (id modelID) String() string {
	return fmt.Sprintf("%s with %d thread blocks, %s, host %s", id.Path, id.CTAs, id.Dir, id.Side)
}

func (m *Model) id() modelID { return modelID{m.Path, m.CTAs, m.Dir, m.Side} }

func (m *Model) validate(sizes, counts int) error {
	switch {
	case m.Path == stream.PathNone || m.Path >= stream.PathCount:
		return fmt.Errorf("path %s: %w", m.Path, errdefs.ErrInvalid)
	case m.Dir >= directions || m.Side >= sides:
		return fmt.Errorf("%s: %w", m.id(), errdefs.ErrInvalid)
	case m.CTAs < 0 || m.CTAs > maxCTAs:
		return fmt.Errorf("%s: %w", m.id(), errdefs.ErrInvalid)
	case len(m.Times) != sizes*counts:
		return fmt.Errorf("%s: %d times for %d sizes and %d counts: %w", m.id(), len(m.Times), sizes, counts, errdefs.ErrInvalid)
	case !inRange(m.Spread, math.MaxFloat64) || m.Points < 0:
		return fmt.Errorf("%s: spread %v of %d points: %w", m.id(), m.Spread, m.Points, errdefs.ErrInvalid)
	}
	for i := range sizes {
		row := m.row(i, counts)
		if !(row[0] > 0 && row[counts-1] <= maxNanos) || !rising(row) {
			return fmt.Errorf("%s: times %v at size %d: %w", m.id(), row, i, errdefs.ErrInvalid)
		}
	}
	for name, v := range map[string]float64{"lead": m.Lead, "duplex": m.Duplex} {
		if !inRange(v, maxNanos) {
			return fmt.Errorf("%s: %s %v: %w", m.id(), name, v, errdefs.ErrInvalid)
		}
	}
	return nil
}

// inRange reports whether 0 <= v <= limit. It returns false for NaN.
func inRange(v, limit float64) bool { return v >= 0 && v <= limit }

// Fill adds models of from, converted to p's sizes and counts, for every direction in which p has
// none. These were not measured, but are better than no models. Fill also adds the rates of a large
// copy in these directions, and the rate of sums if p has none.
func (p *Profile) Fill(from Profile) {
	if p.SumGBps == 0 {
		p.SumGBps = from.SumGBps
	}
	var has [directions]bool
	for i := range p.Models {
		has[p.Models[i].Dir] = true
	}
	for i := range from.Models {
		m := from.Models[i]
		if has[m.Dir] {
			continue
		}
		times := make([]float64, 0, len(p.Sizes)*len(p.Counts))
		for _, size := range p.Sizes {
			for _, n := range p.Counts {
				times = append(times, m.time(from.locate(float64(n), float64(size))))
			}
		}
		m.Times, m.Points = times, 0
		p.Models = append(p.Models, m)
		p.GBps[m.Dir] = from.GBps[m.Dir]
	}
}

// candidates returns a direction's paths and numbers of thread blocks that have a model, in a fixed
// order. If one side was not measured, the model of the other side is used.
func (p *Profile) candidates(dir Direction) []candidate {
	byID := make(map[modelID]*Model, len(p.Models))
	variants := make(map[modelID]bool)
	for i := range p.Models {
		m := &p.Models[i]
		byID[m.id()] = m
		if m.Dir == dir {
			variants[modelID{Path: m.Path, CTAs: m.CTAs}] = true
		}
	}
	find := func(path stream.Path, ctas int, side Side) *Model {
		for _, id := range []modelID{
			{path, ctas, dir, side},
			{path, ctas, dir, 1 - side},
		} {
			if m := byID[id]; m != nil {
				return m
			}
		}
		return nil
	}
	var list []candidate
	for v := range variants {
		c := candidate{path: v.Path, ctas: v.CTAs, taken: footprint(v.Path, v.CTAs), interference: interferenceOf(dir, v.Path, v.CTAs), perRun: perRun(v.Path)}
		c.model = [sides]*Model{find(v.Path, v.CTAs, Contiguous), find(v.Path, v.CTAs, Scattered)}
		if v.Path == stream.PathStaged {
			c.engine = find(stream.PathCopyEngine, 0, Scattered)
		}
		list = append(list, c)
	}
	slices.SortFunc(list, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(a.taken, b.taken), cmp.Compare(a.path, b.path))
	})
	for i := range list {
		list[i].widest = !slices.ContainsFunc(list, func(c candidate) bool { return c.path == list[i].path && c.ctas > list[i].ctas })
	}
	return list
}
