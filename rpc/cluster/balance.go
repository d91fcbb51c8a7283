package cluster

import (
	"math"

	"github.com/kvlane/kvlane/internal/rendezvous"
)

// balance is the share of a server in the decisions of a policy.
type balance struct {
	weight   float64
	seed     uint64  // of the name, for ConsistentHash
	current  float64 // of RoundRobin: the calls that the server lacks, times the sum of the weights
	inFlight int
}

// choose returns the server for the next call, or nil if none is usable. start rotates the choice
// among servers with the same load.
func choose(p Policy, list []*server, usable func(*server) bool, key string, start int) *server {
	var best *server
	hashed := []byte(key)
	total, least := 0.0, math.Inf(1)
	for i := range list {
		s := list[(start+i)%len(list)]
		if !usable(s) {
			continue
		}
		var cost float64
		switch p {
		case LeastLoaded:
			cost = float64(s.inFlight+1) / s.weight
		case ConsistentHash:
			cost = rendezvous.Cost(hashed, s.seed, s.weight)
		default:
			s.current += s.weight
			total += s.weight
			cost = -s.current
		}
		if cost < least {
			best, least = s, cost
		}
	}
	if best != nil {
		best.current -= total
	}
	return best
}
