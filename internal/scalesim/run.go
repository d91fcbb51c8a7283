package scalesim

import (
	"math"
	"slices"
	"time"
)

// Report has the figures of a simulation. Ratios are those of the busiest server to the mean.
type Report struct {
	Config  Config
	Blocks  int64
	Bytes   int64
	HitRate float64 // of the caches, in the phase "steady"

	BytesRatio    float64
	RequestsRatio float64
	Hottest       float64 // share of the hottest run in the requests that were made

	BytesOf, RequestsOf []float64 // each server to the mean, sorted; of the phase "steady"

	Phases  []Phase
	Seconds []Second
}

// Phase has the figures of a phase of the simulation.
type Phase struct {
	Name       string
	Start, End time.Duration

	Lookups, Hits, LostMisses, OtherMisses, Failures, Refusals int64

	RequestsRatio float64
	// Moved is the share of the runs that have another home at the end than before, and Ideal the
	// share that must move.
	Moved, Ideal float64
	// LostShare is the share of the requests whose runs were at the servers that were lost, by the
	// requests of the phase before. FirstLost is the share of the lookups in the first ten seconds
	// that missed a lost run.
	LostShare, FirstLost float64
	// Half is the time until half of the lost hits were back for ten seconds, or zero. Back is the
	// share of them that were back in the last ten seconds of the phase.
	Half time.Duration
	Back float64
	// LeftOut is the time until the requests to a slow server fell to a tenth. Zero: they did not.
	LeftOut time.Duration
}

// Run simulates all phases.
func Run(c Config) (*Report, error) {
	c = c.withDefaults()
	s, err := newSim(c)
	if err != nil {
		return nil, err
	}
	report := &Report{Config: c}
	s.run(c.Warm)
	s.steady(report)
	if err := s.join(report); err != nil {
		return nil, err
	}
	s.drain(report)
	s.lose(report, "a server is lost", []int{3})
	s.slow(report)
	var zone []int
	for i := 5; i < c.Servers; i += c.Zones {
		zone = append(zone, i)
	}
	s.lose(report, "a zone is lost", zone)
	report.Seconds = s.seconds
	return report, nil
}

// Balance simulates the phase "steady" alone.
func Balance(c Config) (*Report, error) {
	c = c.withDefaults()
	s, err := newSim(c)
	if err != nil {
		return nil, err
	}
	report := &Report{Config: c}
	s.run(c.Warm)
	s.steady(report)
	return report, nil
}

// phase runs a phase, in which f runs after a time.
func (s *sim) phase(name string, after time.Duration, f func()) Phase {
	for _, n := range s.pool.nodes {
		n.requests = 0
	}
	p := Phase{Name: name, Start: s.clock.now, End: s.clock.now + s.c.Phase}
	s.second()
	if f != nil {
		s.run(p.Start + after)
		f()
	}
	s.run(p.End)
	for _, x := range s.seconds[p.Start/time.Second : p.End/time.Second] {
		p.Lookups, p.Hits, p.LostMisses = p.Lookups+x.Lookups, p.Hits+x.Hits, p.LostMisses+x.LostMisses
		p.OtherMisses, p.Failures, p.Refusals = p.OtherMisses+x.OtherMisses, p.Failures+x.Failures, p.Refusals+x.Refusals
	}
	requests, _ := s.requests()
	p.RequestsRatio = ratio(requests)
	return p
}

// requests returns the requests of the phase at each server that is up and listed.
func (s *sim) requests() (all []float64, sum float64) {
	for _, i := range s.pool.index {
		if n := s.pool.nodes[i]; n.up {
			all, sum = append(all, float64(n.requests)), sum+float64(n.requests)
		}
	}
	return all, sum
}

func ratio(all []float64) float64 {
	sum := 0.0
	for _, x := range all {
		sum += x
	}
	return slices.Max(all) / (sum / float64(len(all)))
}

// relative returns all by their mean, sorted.
func relative(all []float64) []float64 {
	sum := 0.0
	for _, x := range all {
		sum += x
	}
	out := make([]float64, len(all))
	for i, x := range all {
		out[i] = x / (sum / float64(len(all)))
	}
	slices.Sort(out)
	return out
}

func (s *sim) steady(report *Report) {
	blocks, bytes := s.pool.bytes()
	p := s.phase("steady", 0, nil)
	var of []float64
	for _, n := range bytes {
		report.Bytes += n
		of = append(of, float64(n))
	}
	report.Blocks, report.BytesRatio, report.BytesOf = blocks, ratio(of), relative(of)
	requests, _ := s.requests()
	report.RequestsRatio, report.RequestsOf = p.RequestsRatio, relative(requests)
	var all, hits int64
	for _, x := range s.seconds[p.Start/time.Second : p.End/time.Second] {
		all, hits = all+x.Requests, hits+x.CacheHits
	}
	report.HitRate = float64(hits) / float64(all)
	report.Hottest = 1 / zeta(s.c.Runs, zipfOf(s.c.Runs, s.c.Hottest))
	report.Phases = append(report.Phases, p)
}

// restock stores each run at its home alone, so that phases do not depend on those before. It
// returns the homes.
func (s *sim) restock() []uint16 {
	homes := make([]uint16, s.c.Runs)
	clear(s.pool.more)
	clear(s.pool.lost)
	s.pool.place(func(run uint32, home uint16) {
		homes[run] = home
		s.pool.holders[run] = [2]uint16{home, none}
	})
	return homes
}

// moved returns the share of runs with another home than before.
func (s *sim) moved(before []uint16) float64 {
	n := 0
	s.pool.place(func(run uint32, home uint16) {
		if before[run] != home {
			n++
		}
	})
	return float64(n) / float64(s.c.Runs)
}

func (s *sim) join(report *Report) error {
	before := s.restock()
	for range joinCount {
		s.pool.join(epoch.Add(s.clock.now))
	}
	s.pool.refresh(s.clock.now)
	err := s.connect()
	p := s.phase("a server joins", 0, nil)
	p.Moved, p.Ideal = s.moved(before), joinCount/float64(len(s.pool.listed))
	report.Phases = append(report.Phases, p)
	return err
}

// drain lets a server leave in the second half of a phase.
func (s *sim) drain(report *Report) {
	const leaves = 1
	before := s.restock()
	s.pool.listed[s.pool.nodes[leaves].at].Draining = true
	s.pool.refresh(s.clock.now)
	n := float64(len(s.pool.listed))
	p := s.phase("a server drains, and leaves", s.c.Phase/2, func() {
		s.pool.remove(leaves)
		s.pool.refresh(s.clock.now)
		s.pool.lose(leaves)
	})
	p.Moved, p.Ideal = s.moved(before), 1/n
	report.Phases = append(report.Phases, p)
}

// lose stops servers. The directory removes them later.
func (s *sim) lose(report *Report, name string, lost []int) {
	before := s.restock()
	n := float64(len(s.pool.listed))
	_, all := s.requests()
	share := 0.0
	for _, i := range lost {
		if s.pool.nodes[i].up {
			share += float64(s.pool.nodes[i].requests) / all
		}
	}
	base := s.hitRate(s.clock.now-20*time.Second, s.clock.now)
	s.pool.lose(lost...)
	p := s.phase(name, directoryTime, func() {
		for _, i := range lost {
			s.pool.remove(i)
		}
		s.pool.refresh(s.clock.now)
	})
	p.Moved, p.Ideal, p.LostShare = s.moved(before), float64(len(lost))/n, share
	const window = 10 * time.Second
	first := s.seconds[p.Start/time.Second : (p.Start+window)/time.Second]
	var lookups, misses int64
	for _, x := range first {
		lookups, misses = lookups+x.Lookups, misses+x.LostMisses
	}
	p.FirstLost = float64(misses) / float64(lookups)
	drop := base - s.hitRate(p.Start, p.Start+2*time.Second)
	p.Back = min(1-(base-s.hitRate(p.End-window, p.End))/drop, 1)
	for t := p.Start; t+window <= p.End && p.Half == 0; t += time.Second {
		if base-s.hitRate(t, t+window) <= drop/2 {
			p.Half = max(t-p.Start, time.Second)
		}
	}
	report.Phases = append(report.Phases, p)
}

// hitRate returns the hits of the lookups between two times.
func (s *sim) hitRate(from, to time.Duration) float64 {
	var hits, lookups int64
	for _, x := range s.seconds[from/time.Second : to/time.Second] {
		hits, lookups = hits+x.Hits, lookups+x.Lookups
	}
	return float64(hits) / math.Max(float64(lookups), 1)
}

// slow makes a server slow for half of a phase.
func (s *sim) slow(report *Report) {
	s.restock()
	n := s.pool.nodes[7]
	n.factor = slowFactor
	var left time.Duration
	start, rate := s.clock.now, 0.0
	if _, all := s.requests(); all > 0 {
		rate = all / float64(len(s.pool.index)) / s.c.Phase.Seconds()
	}
	p := s.phase("a server is slow", 0, func() {
		for last := n.requests; s.clock.now < start+s.c.Phase/2; last = n.requests {
			s.run(s.clock.now + time.Second)
			if left == 0 && float64(n.requests-last) < rate/10 {
				left = s.clock.now - start
			}
		}
		n.factor, n.busy = 1, s.clock.now // it drops the requests that wait
	})
	p.LeftOut = left
	report.Phases = append(report.Phases, p)
}
