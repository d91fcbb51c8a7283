package plan

// Figures holds the statistics of a planner and the state of its budget, from about the same
// moment.
type Figures struct {
	Paths        []PathStats
	Drifted      bool    // the profile should be measured again
	Limits       Limits  // limits of the budget; zero without a budget
	Interference float64 // see Budget.Interference
}

// Figures returns the current figures. It is safe for concurrent use.
func (p *Planner) Figures() Figures {
	f := Figures{Paths: p.Stats()}
	_, f.Drifted = p.Drifted()
	if p.budget != nil {
		f.Limits, f.Interference = p.budget.Limits(), p.budget.Interference()
	}
	return f
}
