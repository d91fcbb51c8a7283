package remote

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/blockio"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/breaker"
	"github.com/kvlane/kvlane/internal/placement"
	"github.com/kvlane/kvlane/metadata"
)

const (
	marksMost = 1 << 12
	marksLife = 30 * time.Second
)

// pool is the servers of the tier, which follow the members. Its methods are safe for concurrent
// use.
type pool struct {
	members   metadata.Members
	options   placement.Options
	open      func(metadata.Member) (*server, error)
	marks     *placement.Marks
	latencies *breaker.Latencies

	current atomic.Pointer[snapshot]

	mu      sync.Mutex     // of refreshes
	closing sync.WaitGroup // connections of servers that left
	errs    []error        // of closing
}

// snapshot is the servers of one time. It is immutable.
type snapshot struct {
	list    []placement.Server
	servers []*server // in the order of list
	view    *placement.View
	changed <-chan struct{} // closed when the members change; nil: never
}

// start makes the first snapshot. The servers of the first list are not new.
func (p *pool) start(now time.Time) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	list, changed := p.members.List()
	return p.apply(&snapshot{}, list, changed, func(*metadata.Member) time.Time { return time.Time{} }, now)
}

// get returns the snapshot of now. A server that cannot be opened is left out until the next
// change.
func (p *pool) get(now time.Time) *snapshot {
	s := p.current.Load()
	if !s.stale(now) {
		return s
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if s = p.current.Load(); !s.stale(now) {
		return s
	}
	list, changed := p.members.List()
	// After an error the old snapshot stays.
	_ = p.apply(s, list, changed, func(*metadata.Member) time.Time { return now }, now)
	return p.current.Load()
}

// stale reports whether the members or the weights have changed.
func (s *snapshot) stale(now time.Time) bool {
	select {
	case <-s.changed:
		return true
	default:
	}
	next := s.view.Next()
	return !next.IsZero() && !now.Before(next)
}

// apply makes the snapshot of a list. joined returns the time when a new member joined. The caller
// holds mu.
func (p *pool) apply(old *snapshot, list []metadata.Member, changed <-chan struct{}, joined func(*metadata.Member) time.Time, now time.Time) error {
	next := &snapshot{changed: changed}
	var errs []error
	for i := range list {
		m := &list[i]
		at := slices.IndexFunc(old.list, func(s placement.Server) bool { return s.Name == m.Name })
		var s *server
		of := placement.Server{Name: m.Name, Weight: m.Weight, Zone: m.Zone, Draining: m.Draining}
		switch {
		case at >= 0:
			of.Joined = old.list[at].Joined
			if s = old.servers[at]; s.address == m.Address {
				break
			}
			fallthrough // it came back at another address, perhaps with its blocks
		default:
			opened, err := p.open(*m)
			if err != nil {
				errs = append(errs, err)
				continue
			}
			if s = opened; at < 0 {
				of.Joined = joined(m)
			}
		}
		next.list, next.servers = append(next.list, of), append(next.servers, s)
	}
	if len(next.list) == 0 {
		return errors.Join(append(errs, errdefs.ErrNotFound)...)
	}
	next.view = placement.NewView(next.list, p.options, now)
	p.current.Store(next)
	for _, s := range old.servers {
		if !slices.Contains(next.servers, s) {
			p.latencies.Remove(s.latency)
			p.close(s)
		}
	}
	return errors.Join(errs...)
}

// close closes the connection of a server that left, in the background: requests in progress fail.
// The caller holds mu.
func (p *pool) close(s *server) {
	p.closing.Go(func() {
		err := s.client.Close(context.Background())
		p.mu.Lock()
		defer p.mu.Unlock()
		p.errs = append(p.errs, err)
	})
}

// closeAll closes all connections.
func (p *pool) closeAll(ctx context.Context) error {
	var errs []error
	for _, s := range p.current.Load().servers {
		errs = append(errs, s.client.Close(ctx))
	}
	p.closing.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	return errors.Join(append(errs, p.errs...)...)
}

// route is the servers of a run at one time.
type route struct {
	run   uint32
	reads []*server // in this order, until one has the block
	write *server   // gets new blocks
	all   []*server // that may have blocks of the run
}

// route returns the route of the run with an anchor.
func (p *pool) route(anchor block.Key, now time.Time) *route {
	s := p.get(now)
	r := &route{run: placement.Run(anchor[:])}
	k := p.marks.Replicas(r.run, now)
	var buf [placement.MaxReplicas]int
	order := s.view.Order(anchor[:], max(k, 2), buf[:0])
	home := s.servers[order[0]]
	replicas := order[:min(k, len(order))]
	chosen := s.view.Choose(replicas, random, func(i int) float64 { return s.servers[i].score(now) })
	r.add(s.servers[chosen])
	r.add(home)
	if k > 1 && len(r.reads) == 1 {
		r.add(s.servers[order[len(replicas)-1]]) // for a home that fails
	}
	if previous := s.view.Previous(anchor[:], order[0]); previous != placement.None {
		r.add(s.servers[previous])
	}
	r.write = home
	if is, was := home.leftOut(now); len(order) > 1 && was {
		second := s.servers[order[1]]
		if r.add(second); is {
			r.write = second
		}
	}
	r.all = r.reads
	for _, i := range replicas {
		if !slices.Contains(r.all, s.servers[i]) {
			r.all = append(r.all[:len(r.all):len(r.all)], s.servers[i])
		}
	}
	return r
}

func (r *route) add(s *server) {
	if !slices.Contains(r.reads, s) {
		r.reads = append(r.reads, s)
	}
}

// globalSource is a source of random numbers for several goroutines.
type globalSource struct{}

// Uint64 implements rand.Source.
func (globalSource) Uint64() uint64 { return rand.Uint64() }

var random = rand.New(globalSource{})

// number returns a context by which a server counts requests of a run.
func (r *route) number(ctx context.Context) context.Context { return blockio.WithRun(ctx, r.run) }
