package remote

import (
	"math"

	"github.com/zeebo/xxh3"

	"github.com/kvlane/kvlane/block"
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
		p.servers = append(p.servers, candidate{xxh3.HashString(members[i].Name), float64(members[i].Weight)})
	}
	return p
}

// Server returns the index of the member for the run with an anchor.
func (p Placement) Server(anchor block.Key) int {
	best, least := 0, math.Inf(1)
	for i, s := range p.servers {
		// u is uniform in (0, 1), so -ln(u)/weight is exponential with the rate weight. The server
		// with the least value is chosen with the probability of its share of the weights.
		u := (float64(xxh3.HashSeed(anchor[:], s.seed)>>11) + 0.5) / (1 << 53)
		if v := -math.Log(u) / s.weight; v < least {
			best, least = i, v
		}
	}
	return best
}
