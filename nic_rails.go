//go:build !nonic

package kvlane

import (
	"fmt"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/rdma/registry"
	"github.com/kvlane/kvlane/stream"
	"github.com/kvlane/kvlane/stream/nic"
)

// Rails returns the NICs as streams take them, with the ports that are active now: for who uses them without a stream.
func (n *NICs) Rails() ([]nic.NIC, error) {
	stack, ok := n.stack.(*nics)
	if !ok {
		return nil, fmt.Errorf("NICs are %T: %w", n.stack, errdefs.ErrInvalid)
	}
	return stack.rails()
}

// stats implements nicStatter.
func (n *nics) stats() []stream.NICStats {
	all := make([]stream.NICStats, len(n.open))
	for i, g := range n.open {
		s := &all[i]
		s.Name = g.Name()
		n.counts[i].Read(s)
		r := g.Stats()
		s.RegistrationsFailed = r.Failed
		for k, by := range r.By {
			s.Registrations = append(s.Registrations, stream.RegistrationStats{
				Method: registry.Method(k + 1).String(), Live: by.Live, Bytes: by.Bytes, Total: by.Total,
			})
		}
	}
	return all
}
