package scalesim

import (
	"encoding/binary"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
)

// zipfOf returns the exponent s of Zipf's law with which the first of n runs has a share of the
// requests.
func zipfOf(n int, share float64) float64 {
	low, high := 1.0001, 4.0
	for range 60 {
		s := (low + high) / 2
		if 1/zeta(n, s) < share {
			low = s
		} else {
			high = s
		}
	}
	return (low + high) / 2
}

// zeta returns the sum of k^-s for k from 1 to n. The sum from 1000 is that of an integral.
func zeta(n int, s float64) (sum float64) {
	exact := min(n, 1000)
	for k := 1; k <= exact; k++ {
		sum += math.Pow(float64(k), -s)
	}
	if n > exact {
		sum += (math.Pow(float64(exact)+0.5, 1-s) - math.Pow(float64(n)+0.5, 1-s)) / (s - 1)
	}
	return sum
}

// mix returns a number that looks random for each x.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// anchor returns the anchor of a run: as random as a hash.
func anchor(seed uint64, run uint32) (a [32]byte) {
	for i := range 4 {
		binary.LittleEndian.PutUint64(a[8*i:], mix(seed<<40^uint64(run)<<2^uint64(i)))
	}
	return a
}

// Bytes of the blocks of three models: two thirds of the runs are of the first.
var blockBytes = [...]int64{2 << 20, 2 << 20, 1 << 20, 2 << 20, 2 << 20, 5 << 19}

// sizeOf returns the blocks and bytes of a run. One of 21 runs is the end of a prompt, with 1 to 63
// blocks; the others have 64.
func sizeOf(seed uint64, run uint32) (blocks, bytes int64) {
	h := mix(seed<<33 ^ uint64(run) ^ 0xabcdef<<40)
	blocks = 64
	if h%21 == 0 {
		blocks = 1 + int64(h>>8%63)
	}
	return blocks, blocks * blockBytes[h>>32%uint64(len(blockBytes))]
}

// cache is the cache of a client: sets of 8 runs, of which the least recently used one is replaced.
type cache struct {
	runs []uint32 // run + 1, the most recent of a set first; 0: none
}

const ways = 8

func newCache(runs int) *cache { return &cache{make([]uint32, runs/ways*ways)} }

// use reports whether a run is in the cache, and makes it the most recent one.
func (c *cache) use(run uint32) bool {
	set := c.set(run)
	for i, r := range set {
		if r == run+1 {
			copy(set[1:], set[:i])
			set[0] = run + 1
			return true
		}
	}
	return false
}

func (c *cache) add(run uint32) {
	if set := c.set(run); len(set) > 0 && !c.use(run) {
		copy(set[1:], set)
		set[0] = run + 1
	}
}

func (c *cache) set(run uint32) []uint32 {
	sets := len(c.runs) / ways
	if sets == 0 {
		return nil
	}
	at := int(mix(uint64(run))%uint64(sets)) * ways
	return c.runs[at : at+ways]
}

func newRandom(seed, stream uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, stream)) }

func sortedKeys(m map[float64]string) []float64 { return slices.Sorted(maps.Keys(m)) }
