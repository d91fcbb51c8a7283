// Package rendezvous has weighted rendezvous hashing, which assigns keys to servers.
//
// A key belongs to the server with the least cost. The share of a server is its share of the
// weights. If a server is added, keys move only to it. If a server is removed, only its keys move,
// to the other servers by their weights.
package rendezvous

import (
	"math"

	"github.com/zeebo/xxh3"
)

// Seed returns the seed of the server with a name.
func Seed(name string) uint64 { return xxh3.HashString(name) }

// Cost returns the cost of a key at the server with a seed. The weight is positive.
func Cost(key []byte, seed uint64, weight float64) float64 {
	return cost(uniform(key, seed), weight)
}

// cost returns -ln(u)/weight. If u is uniform in (0, 1), it is exponential with the rate weight: the
// server with the least value is chosen with the probability of its share of the weights.
func cost(u, weight float64) float64 { return -math.Log(u) / weight }

// CostBelow returns the cost and true if it is less than most. It is faster than Cost, because most
// servers need no logarithm.
func CostBelow(key []byte, seed uint64, weight, most float64) (c float64, below bool) {
	u := uniform(key, seed)
	if 1-u > most*weight*(1+1e-9) { // -ln(u) is at least 1-u
		return 0, false
	}
	c = cost(u, weight)
	return c, c < most
}

func uniform(key []byte, seed uint64) float64 {
	return (float64(xxh3.HashSeed(key, seed)>>11) + 0.5) / (1 << 53)
}
