package bench

import (
	"slices"

	"github.com/kvlane/kvlane/stream"
	"github.com/kvlane/kvlane/stream/copy/measure"
)

// Regret compares the automatic choice of paths at one place with the best fixed path and with the
// baselines.
type Regret struct {
	Cell
	Direction Direction
	Layout    Layout
	Traveled  string
	Best      string // fastest fixed path
	Baseline  string // faster of the baselines
	// Lost is the relative difference between the rate of Best and the rate of the choice; it is
	// negative if the choice was faster. Beaten is the same for Baseline. Both are medians over the
	// rounds. Zero: not compared.
	Lost, Beaten float64
	// Predicted is the predicted time divided by the measured time, or zero.
	Predicted float64
}

// Chance reports whether the choice was the best path itself. Then Lost is only measurement noise
// and the cost of choosing.
func (r *Regret) Chance() bool { return r.Traveled == r.Best }

// Regrets returns the comparison for every point with automatic choice.
func (r *Report) Regrets() []Regret {
	best, base := make(map[place]*Point), make(map[place]*Point)
	for i := range r.Points {
		p := &r.Points[i]
		c, err := ParseContender(p.Path)
		var m map[place]*Point
		switch {
		case err == nil && c.NIC(): // automatic choice does not use NICs
			continue
		case p.Baseline:
			m = base
		case err == nil && c.Path != stream.PathNone:
			m = best
		default:
			continue
		}
		if at := p.place(); m[at] == nil || m[at].GBps < p.GBps {
			m[at] = p
		}
	}
	var all []Regret
	for i := range r.Points {
		p := &r.Points[i]
		if p.Path != Auto {
			continue
		}
		l := Regret{Cell: p.Cell, Direction: p.Direction, Layout: p.Layout, Traveled: p.Traveled}
		if b := best[p.place()]; b != nil {
			l.Best, l.Lost = b.Path, p.shortfall(b)
		}
		if b := base[p.place()]; b != nil {
			l.Baseline, l.Beaten = b.Path, p.shortfall(b)
		}
		if p.P50Micros > 0 {
			l.Predicted = p.PredictedMicros / p.P50Micros
		}
		all = append(all, l)
	}
	return all
}

func (p *Point) place() place { return place{p.Cell, p.Direction, p.Layout} }

// shortfall returns the relative difference between the rates of other and p. It is positive if p
// is slower.
func (p *Point) shortfall(other *Point) float64 {
	if len(p.RoundGBps) != len(other.RoundGBps) || slices.Contains(other.RoundGBps, 0) || len(p.RoundGBps) == 0 {
		return 1 - p.GBps/other.GBps
	}
	lost := make([]float64, len(p.RoundGBps))
	for i, v := range p.RoundGBps {
		lost[i] = 1 - v/other.RoundGBps[i]
	}
	return measure.Median(lost)
}
