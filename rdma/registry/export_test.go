package registry

// Table returns the current table.
func (g *Registry) Table() []*Memory { return *g.table.Load() }
