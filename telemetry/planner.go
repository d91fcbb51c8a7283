package telemetry

import "github.com/kvlane/kvlane/stream/copy/plan"

// SetPlanner sets the source of the metrics of a planner and its budget. Nil removes it.
func (m *Metrics) SetPlanner(figures func() plan.Figures) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.planner = figures
}

// plannerFamilies are the metrics of the planner of the copy streams.
var plannerFamilies = []family[*plan.Figures]{
	planFamily("kvlane_plan_choices_total", "batches", Counter, "Batches for which the path was chosen.", func(p *plan.PathStats) float64 { return float64(p.Choices) }),
	planFamily("kvlane_plan_observed_total", "batches", Counter, "Chosen batches whose time was compared with the prediction.", func(p *plan.PathStats) float64 { return float64(p.Observed) }),
	planFamily("kvlane_plan_predicted_seconds_total", "seconds", Counter, "Time that the observed batches were predicted to take.", func(p *plan.PathStats) float64 { return p.Predicted.Seconds() }),
	planFamily("kvlane_plan_actual_seconds_total", "seconds", Counter, "Time that the observed batches took.", func(p *plan.PathStats) float64 { return p.Actual.Seconds() }),
	planFamily("kvlane_plan_scale", "ratio", Gauge, "Ratio of recently observed times to the profile's predictions; 1 is as calibrated.", func(p *plan.PathStats) float64 { return p.Scale }),
	{
		Metric{"kvlane_plan_drifted", "none", Gauge, "1 if the profile should be measured again (kvlane calibrate --force).", nil},
		func(f *plan.Figures, out emit) {
			v := 0.0
			if f.Drifted {
				v = 1
			}
			out(v)
		},
	},
	limitFamily("kvlane_plan_budget_thread_blocks", "blocks", "Thread blocks that copies may use under a policy that limits interference.", func(f *plan.Figures) float64 { return float64(f.Limits.CTAs) }),
	limitFamily("kvlane_plan_budget_chunk_bytes", "bytes", "Bytes that they may submit to the device at once.", func(f *plan.Figures) float64 { return float64(f.Limits.ChunkBytes) }),
	limitFamily("kvlane_plan_budget_harm", "ratio", "Slow-down last reported by the host program, as a multiple of the budget.", func(f *plan.Figures) float64 { return f.Interference }),
}

func planFamily(name, unit string, typ Type, help string, read func(*plan.PathStats) float64) family[*plan.Figures] {
	return family[*plan.Figures]{
		Metric{name, unit, typ, help, []string{labelPath, labelDirection}},
		func(f *plan.Figures, out emit) {
			for i := range f.Paths {
				out(read(&f.Paths[i]), f.Paths[i].Path.String(), f.Paths[i].Dir.String())
			}
		},
	}
}

func limitFamily(name, unit, help string, read func(*plan.Figures) float64) family[*plan.Figures] {
	return family[*plan.Figures]{
		Metric{Name: name, Unit: unit, Type: Gauge, Help: help},
		func(f *plan.Figures, out emit) {
			if f.Limits != (plan.Limits{}) {
				out(read(f))
			}
		},
	}
}
