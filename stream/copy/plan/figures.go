package plan

// Figures are what a planner has seen, and what its budget allows where harm counts, of about one moment.
type Figures struct {
	Paths   []PathStats
	Drifted bool    // the profile should be measured anew
	Limits  Limits  // of the budget; zero where there is none
	Harm    float64 // as Budget.Harm has it
}

// Figures returns the figures of now. Safe for concurrent use.
func (p *Planner) Figures() Figures {
	f := Figures{Paths: p.Stats()}
	_, f.Drifted = p.Drifted()
	if p.budget != nil {
		f.Limits, f.Harm = p.budget.Limits(), p.budget.Harm()
	}
	return f
}
