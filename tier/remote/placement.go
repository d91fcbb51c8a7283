package remote

import (
	"math"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/internal/rendezvous"
	"github.com/kvlane/kvlane/metadata"
)

// Placement chooses servers by weighted rendezvous hashing. If a server is added, blocks move only
// to it. If a server is removed, only its blocks move. It is immutable.
type Placement struct{ servers []candidate }

type candidate struct {
	seed   uint64 // of the server's name
	weight float64
}

// NewPlacement returns a placement on members. Their names and weights alone determine it. members
// must not be empty.
func NewPlacement(members []metadata.Member) Placement {
	var p Placement
	for i := range members {
		p.servers = append(p.servers, candidate{rendezvous.Seed(members[i].Name), float64(members[i].Weight)})
	}
	return p
}

// Server returns the index of the member for the run with an anchor.
func (p Placement) Server(anchor block.Key) int {
	best, least := 0, math.Inf(1)
	for i, s := range p.servers {
		if v := rendezvous.Cost(anchor[:], s.seed, s.weight); v < least {
			best, least = i, v
		}
	}
	return best
}
