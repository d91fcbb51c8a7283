package store_test

import (
	"errors"
	"slices"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/fault"
)

// remove removes blocks while tasks run. A dump that runs may store its blocks afterwards, and a load
// without a lease of all its blocks may miss them.
func (m *model) remove() {
	ns := m.draw()
	r, err := m.r.st.Remove(m.r.ctx(), m.r.keys(ns...))
	m.r.must(err)
	m.log("remove %v: %d removed, left: %v", ns, len(r.Keys), r.Left)
	if r.Left != nil && !errors.Is(r.Left, errdefs.ErrBusy) && (!m.c.faults || !errors.Is(r.Left, fault.ErrInjected)) {
		m.t.Fatalf("remove: %v", r.Left)
	}
	for _, n := range ns {
		dumped, leased := false, false
		for _, p := range m.tasks {
			for i := range p.ns {
				switch {
				case p.ns[i] != n:
				case p.dump != nil:
					dumped, p.gone[n] = true, true
				case p.lease != nil && p.lease.Len() == len(p.ns):
					leased = true
				default:
					p.known[i].durable = false
				}
			}
		}
		removed := slices.Contains(r.Keys, m.r.key(n))
		b := &m.blocks[n]
		switch {
		case removed && leased:
			m.t.Fatalf("block %d was removed under a lease", n)
		case removed || r.Left == nil: // no tier has it
			*b = modelBlock{tried: dumped}
		default: // another tier may have it
			b.durable, b.twice = b.durable && leased, false
		}
	}
}
