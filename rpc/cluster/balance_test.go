package cluster

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kvlane/kvlane/internal/rendezvous"
)

// rig returns servers with weights.
func rig(weights ...int) []*server {
	list := make([]*server, len(weights))
	for i, w := range weights {
		list[i] = &server{balance: balance{weight: float64(w), seed: rendezvous.Seed(fmt.Sprintf("host-%d:9000", i))}}
	}
	return list
}

func all(*server) bool { return true }

func randomWeights(r *rand.Rand) []int {
	out := make([]int, 1+r.IntN(8))
	for i := range out {
		out[i] = 1 + r.IntN(1+r.IntN(20))
	}
	return out
}

// In each period of as many calls as the sum of the weights, each server gets exactly its weight,
// and at no time is it a whole period ahead or behind.
func TestRoundRobinIsExact(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		weights := randomWeights(r)
		list := rig(weights...)
		sum := 0
		for _, w := range weights {
			sum += w
		}
		counts := make([]int, len(list))
		for call := 1; call <= 3*sum; call++ {
			counts[slices.Index(list, choose(RoundRobin, list, all, "", r.IntN(len(list))))]++
			for i, w := range weights {
				ideal := float64(call) * float64(w) / float64(sum)
				if off := math.Abs(float64(counts[i]) - ideal); off >= float64(len(list)) || call%sum == 0 && off > 0 {
					t.Fatalf("weights %v: after %d calls server %d has %d, not %.1f", weights, call, i, counts[i], ideal)
				}
			}
		}
	}
}

// While servers come and go, each usable server gets its share of the calls, and others get none.
func TestRoundRobinWithUnusableServers(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 100 {
		weights := randomWeights(r)
		list := rig(weights...)
		for range 10 {
			use := make(map[*server]bool)
			sum := 0.0
			for _, s := range list {
				if use[s] = r.IntN(3) > 0; use[s] {
					sum += s.weight
				}
			}
			counts := make(map[*server]int)
			periods := 20
			for range periods * int(sum) {
				s := choose(RoundRobin, list, func(s *server) bool { return use[s] }, "", 0)
				if !use[s] {
					t.Fatal("an unusable server was chosen")
				}
				counts[s]++
			}
			for _, s := range list {
				if use[s] && math.Abs(float64(counts[s])-float64(periods)*s.weight) > 3*float64(len(list)) {
					t.Fatalf("weights %v: %d calls of %d at a server of weight %g of %g", weights, counts[s], periods*int(sum), s.weight, sum)
				}
			}
			if sum == 0 && choose(RoundRobin, list, func(s *server) bool { return use[s] }, "", 0) != nil {
				t.Fatal("an unusable server was chosen")
			}
		}
	}
}

// A model of calls that begin and end at random: each call begins at a server with the least load
// for its weight, and equal servers get equal shares.
func TestLeastLoadedModel(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for range 100 {
		list := rig(randomWeights(r)...)
		for call := range 500 {
			use := func(s *server) bool { return call%7 > 0 || s != list[0] }
			got := choose(LeastLoaded, list, use, "", call)
			for _, s := range list {
				if use(s) && (got == nil || !use(got) || float64(got.inFlight+1)/got.weight > float64(s.inFlight+1)/s.weight) {
					t.Fatalf("chose %+v, but there is %+v", got, s)
				}
			}
			if got != nil {
				got.inFlight++
			}
			if s := list[r.IntN(len(list))]; s.inFlight > 0 && r.IntN(4) > 0 {
				s.inFlight--
			}
		}
	}
	idle, counts := rig(1, 1, 1), make(map[*server]int)
	for call := range 300 {
		counts[choose(LeastLoaded, idle, all, "", call)]++
	}
	for _, s := range idle {
		if counts[s] != 100 {
			t.Errorf("%d calls of 300 at one of 3 idle servers", counts[s])
		}
	}
}

// Keys are spread by the weights. A server that is added takes keys from others in proportion, and
// no other key moves; the same holds for a server that is removed.
func TestConsistentHashMovesLittle(t *testing.T) {
	const keys = 20_000
	list := rig(1, 2, 3, 4)
	place := func(list []*server, usable func(*server) bool) []*server {
		out := make([]*server, keys)
		for i := range out {
			out[i] = choose(ConsistentHash, list, usable, fmt.Sprint("key-", i), i%len(list))
		}
		return out
	}
	share := func(places []*server, of *server) float64 {
		n := 0
		for _, s := range places {
			if s == of {
				n++
			}
		}
		return float64(n) / keys
	}
	before := place(list, all)
	for _, s := range list {
		if got, want := share(before, s), s.weight/10; math.Abs(got-want) > 0.015 {
			t.Errorf("a server of weight %g of 10 has %.3f of the keys", s.weight, got)
		}
	}
	added := append(slices.Clone(list), rig(0, 0, 0, 0, 5)[4])
	for i, s := range place(added, all) {
		if s != before[i] && s != added[4] {
			t.Fatalf("key %d moved between old servers", i)
		}
	}
	if got := share(place(added, all), added[4]); math.Abs(got-5.0/15) > 0.015 {
		t.Errorf("an added server of weight 5 of 15 has %.3f of the keys", got)
	}
	down := place(list, func(s *server) bool { return s != list[3] })
	for i, s := range down {
		if s != before[i] && before[i] != list[3] {
			t.Fatalf("key %d moved, though its server is usable", i)
		}
	}
	for _, s := range list[:3] {
		if got, want := share(down, s), s.weight/6; math.Abs(got-want) > 0.015 {
			t.Errorf("without one server, a server of weight %g of 6 has %.3f of the keys", s.weight, got)
		}
	}
}
