package telemetry

import "github.com/kvlane/kvlane/stream/copy/plan"

// plannerFigures is a planner's figures at a scrape.
type plannerFigures struct {
	paths   []plan.PathStats
	drift   plan.Drift
	drifted bool
	limits  *plan.Limits
	harm    float64
}

// SetPlanner makes p, and the budget that bounds its background copies, the source of the planner's metrics; nil takes
// either away.
func (m *Metrics) SetPlanner(p *plan.Planner, b *plan.Budget) {
	m.collect.mu.Lock()
	defer m.collect.mu.Unlock()
	m.collect.planner, m.collect.budget = p, b
}

func readPlanner(p *plan.Planner, b *plan.Budget) plannerFigures {
	f := plannerFigures{paths: p.Stats()}
	f.drift, f.drifted = p.Drifted()
	if b != nil {
		l := b.Limits()
		f.limits, f.harm = &l, b.Harm()
	}
	return f
}

// plannerFamilies are read from the planner of the copy streams.
var plannerFamilies = []family[*plannerFigures]{
	planFamily("kvlane_plan_choices_total", "batches", Counter, "Batches for which the path was chosen.", func(p *plan.PathStats) float64 { return float64(p.Choices) }),
	planFamily("kvlane_plan_observed_total", "batches", Counter, "Chosen batches whose time was compared with the prediction.", func(p *plan.PathStats) float64 { return float64(p.Observed) }),
	planFamily("kvlane_plan_predicted_seconds_total", "seconds", Counter, "Time that the observed batches were predicted to take.", func(p *plan.PathStats) float64 { return p.Predicted.Seconds() }),
	planFamily("kvlane_plan_actual_seconds_total", "seconds", Counter, "Time that the observed batches took.", func(p *plan.PathStats) float64 { return p.Actual.Seconds() }),
	planFamily("kvlane_plan_scale", "ratio", Gauge, "What lately observed times make of the profile's predictions; 1 is as measured by calibration.", func(p *plan.PathStats) float64 { return p.Scale }),
	{
		Metric{"kvlane_plan_drifted", "none", Gauge, "1 where the profile should be measured anew (kvlane calibrate --force).", nil},
		func(f *plannerFigures, out emit) {
			v := 0.0
			if f.drifted {
				v = 1
			}
			out(v)
		},
	},
	limitFamily("kvlane_plan_budget_thread_blocks", "blocks", "Thread blocks that background copies may take now.", func(f *plannerFigures) float64 { return float64(f.limits.CTAs) }),
	limitFamily("kvlane_plan_budget_chunk_bytes", "bytes", "Bytes that background copies may give to the device at once.", func(f *plannerFigures) float64 { return float64(f.limits.ChunkBytes) }),
	limitFamily("kvlane_plan_budget_harm", "ratio", "Slow-down last seen beside background copies, as a multiple of what their budget allows.", func(f *plannerFigures) float64 { return f.harm }),
}

func planFamily(name, unit string, typ Type, help string, read func(*plan.PathStats) float64) family[*plannerFigures] {
	return family[*plannerFigures]{
		Metric{name, unit, typ, help, []string{labelPath, labelDirection}},
		func(f *plannerFigures, out emit) {
			for i := range f.paths {
				out(read(&f.paths[i]), f.paths[i].Path.String(), f.paths[i].Dir.String())
			}
		},
	}
}

func limitFamily(name, unit, help string, read func(*plannerFigures) float64) family[*plannerFigures] {
	return family[*plannerFigures]{
		Metric{Name: name, Unit: unit, Type: Gauge, Help: help},
		func(f *plannerFigures, out emit) {
			if f.limits != nil {
				out(read(f))
			}
		},
	}
}
