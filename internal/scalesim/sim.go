package scalesim

import (
	"container/heap"
	"errors"
	"math"
	"math/rand/v2"
	"time"

	"github.com/jonboulle/clockwork"

	"github.com/kvlane/kvlane/internal/breaker"
	"github.com/kvlane/kvlane/internal/placement"
)

var errNoAnswer = errors.New("no answer in time")

// clock is the simulated clock of the breakers, which use Now alone.
type clock struct {
	clockwork.Clock
	now time.Duration
}

func (c *clock) Now() time.Time { return epoch.Add(c.now) }

// client is a client with its cache and its view of each server's health.
type client struct {
	zone      int
	cache     *cache
	marks     *placement.Marks
	latencies *breaker.Latencies
	links     []link // by node
}

type link struct {
	breaker *breaker.Breaker
	latency *breaker.Latency
	load    *placement.Load
	refused time.Duration // last time that the breaker refused a request; zero: never
}

// request is a request of a client for a run. It goes to its targets one after the other, until one
// has the run.
type request struct {
	client  int
	run     uint32
	home    int
	second  int // in the order of the run
	targets []int
	missed  int // first target that does not have the run, or none

	// The request in progress.
	permit  breaker.Permit
	started time.Duration
	failed  bool
	end     time.Duration
	number  uint64 // of the event, so that simultaneous ones have an order
}

type events []*request

func (e events) Len() int { return len(e) }
func (e events) Less(i, j int) bool {
	return e[i].end < e[j].end || e[i].end == e[j].end && e[i].number < e[j].number
}
func (e events) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)   { *e = append(*e, x.(*request)) } //nolint:errcheck // only requests are pushed
func (e *events) Pop() any {
	last := len(*e) - 1
	x := (*e)[last]
	(*e)[last] = nil
	*e = (*e)[:last]
	return x
}

// Second has the figures of a second.
type Second struct {
	Requests, CacheHits     int64 // of clients
	Lookups, Hits           int64 // after the caches
	LostMisses, OtherMisses int64 // misses of runs that a lost server had, and others
	Failures, Refusals      int64 // requests to servers that failed, or that a breaker refused
}

// sim is a running simulation.
type sim struct {
	c       Config
	clock   *clock
	random  *rand.Rand
	zipf    *rand.Zipf
	pool    *pool
	clients []*client
	events  events
	free    []*request
	number  uint64
	next    time.Duration // of the next request
	seconds []Second
}

func newSim(c Config) (*sim, error) {
	s := &sim{c: c, clock: new(clock), random: newRandom(c.Seed, 1), pool: newPool(c)}
	s.zipf = rand.NewZipf(newRandom(c.Seed, 2), zipfOf(c.Runs, c.Hottest), 1, uint64(c.Runs-1))
	for i := range c.Clients {
		l, err := breaker.NewLatencies(breaker.LatencyOptions{})
		if err != nil {
			return nil, err
		}
		k := &client{zone: i % c.Zones, cache: newCache(c.CacheRuns), marks: placement.NewMarks(marksMost, marksLife), latencies: l}
		s.clients = append(s.clients, k)
	}
	return s, s.connect()
}

// connect gives each client a link to each server.
func (s *sim) connect() error {
	for _, k := range s.clients {
		for len(k.links) < len(s.pool.nodes) {
			b, err := breaker.New(breaker.Options{Clock: s.clock})
			if err != nil {
				return err
			}
			k.links = append(k.links, link{breaker: b, latency: k.latencies.Add(), load: new(placement.Load)})
		}
	}
	return nil
}

// second returns the figures of the present second.
func (s *sim) second() *Second {
	for at := int(s.clock.now / time.Second); len(s.seconds) <= at; {
		s.seconds = append(s.seconds, Second{})
	}
	return &s.seconds[s.clock.now/time.Second]
}

// run simulates until a time.
func (s *sim) run(end time.Duration) {
	for {
		if len(s.events) > 0 && s.events[0].end <= s.next {
			if s.events[0].end > end {
				break
			}
			r := heap.Pop(&s.events).(*request) //nolint:errcheck // only requests are pushed
			s.clock.now = r.end
			s.complete(r)
			continue
		}
		if s.next > end {
			break
		}
		s.clock.now = s.next
		s.next += time.Duration(s.random.ExpFloat64() / s.c.Rate * float64(time.Second))
		s.pool.expire(s.clock.now)
		s.begin(s.random.IntN(len(s.clients)), uint32(s.zipf.Uint64()))
	}
	s.clock.now = end
}

// begin begins a request of a client.
func (s *sim) begin(client int, run uint32) {
	k, figures := s.clients[client], s.second()
	if figures.Requests++; k.cache.use(run) {
		figures.CacheHits++
		return
	}
	figures.Lookups++
	r := new(request)
	if n := len(s.free) - 1; n >= 0 {
		r, s.free = s.free[n], s.free[:n]
		*r = request{targets: r.targets[:0]}
	}
	r.client, r.run, r.home, r.second, r.missed = client, run, s.pool.home(run), placement.None, placement.None
	chosen := r.home
	if n := k.marks.Replicas(number(s.c.Seed, run), s.clock.Now()); n > 1 {
		chosen, r.second = s.pool.choose(run, n, k.zone, s.random, func(node int) float64 {
			if k.links[node].breaker.State() != breaker.Closed {
				return math.Inf(1)
			}
			return k.links[node].load.Score(s.clock.Now())
		})
	}
	r.targets = append(r.targets, chosen)
	r.also(r.home)
	r.also(r.second) // for a home that fails
	r.also(s.pool.previous(run))
	if l := &k.links[r.home]; l.refused > 0 && s.clock.now-l.refused < rampTime {
		r.also(s.spill(r))
	}
	s.try(r)
}

func number(seed uint64, run uint32) uint32 {
	a := anchor(seed, run)
	return placement.Run(a[:])
}

// also adds a target.
func (r *request) also(node int) {
	for _, t := range r.targets {
		if t == node {
			return
		}
	}
	if node != placement.None {
		r.targets = append(r.targets, node)
	}
}

// spill returns the second server of a run, which stands for a home that is not called.
func (s *sim) spill(r *request) int {
	if r.second == placement.None {
		_, r.second = s.pool.choose(r.run, 1, 0, nil, nil)
	}
	return r.second
}

// try sends a request to the next target that may be called.
func (s *sim) try(r *request) {
	k := s.clients[r.client]
	for len(r.targets) > 0 {
		node := r.targets[0]
		l, n := &k.links[node], s.pool.nodes[node]
		permit, err := l.breaker.Allow()
		if err != nil {
			s.second().Refusals++
			l.refused = s.clock.now
			if r.targets = append(r.targets[:0], r.targets[1:]...); node == r.home {
				r.also(s.spill(r))
			}
			continue
		}
		l.load.Begin()
		n.requests++
		r.permit, r.started, r.failed, r.end = permit, s.clock.now, true, s.clock.now+timeout
		if n.up {
			n.busy = max(n.busy, s.clock.now) + time.Duration(n.factor)*requestTime
			if end := n.busy + networkTime; end < r.end {
				r.end, r.failed = end, false
			}
		}
		s.number++
		r.number = s.number
		heap.Push(&s.events, r)
		return
	}
	s.miss(r)
}

// complete ends a request to a target.
func (s *sim) complete(r *request) {
	k, node := s.clients[r.client], r.targets[0]
	l, n := &k.links[node], s.pool.nodes[node]
	r.targets = append(r.targets[:0], r.targets[1:]...)
	if r.failed {
		s.second().Failures++
		l.load.End(0, s.clock.Now())
		r.permit.Fail(errNoAnswer)
		s.try(r)
		return
	}
	l.load.End(r.end-r.started, s.clock.Now())
	if err := l.latency.Observe(r.end - r.started); err != nil {
		r.permit.Open(err)
	} else {
		r.permit.Succeed()
	}
	run := number(s.c.Seed, r.run)
	if replicas := n.counter.Count(run, s.clock.Now()); replicas > 1 {
		k.marks.Set(run, replicas, s.clock.Now())
	}
	if !s.pool.has(node, r.run) {
		if r.missed == placement.None {
			r.missed = node
		}
		s.try(r)
		return
	}
	s.second().Hits++
	if r.missed != placement.None { // the client writes the run to the server that missed it
		s.pool.store(r.missed, r.run)
	}
	s.end(r)
}

// miss ends a request that no target answered with the run. The client computes it, and stores it.
func (s *sim) miss(r *request) {
	if s.pool.lost[r.run] {
		s.second().LostMisses++
	} else {
		s.second().OtherMisses++
	}
	to := r.home
	if s.clients[r.client].links[to].breaker.State() != breaker.Closed {
		to = s.spill(r)
	}
	s.pool.store(to, r.run)
	s.end(r)
}

func (s *sim) end(r *request) {
	s.clients[r.client].cache.add(r.run)
	s.free = append(s.free, r)
}
