package registry

// Table returns what lookups see now.
func (g *Registry) Table() []*Memory { return *g.table.Load() }
