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
	// u is uniform in (0, 1), so -ln(u)/weight is exponential with the rate weight. The server with
	// the least value is chosen with the probability of its share of the weights.
	u := (float64(xxh3.HashSeed(key, seed)>>11) + 0.5) / (1 << 53)
	return -math.Log(u) / weight
}
