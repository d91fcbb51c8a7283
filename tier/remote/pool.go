package remote

import (
	"context"
	"errors"
	"fmt"
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
	"github.com/kvlane/kvlane/tier"
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
	zones   atomic.Int64 // changes of zones that servers report

	refreshing atomic.Bool
	ctx        context.Context // of refreshes of the list
	cancel     context.CancelFunc

	mu         sync.Mutex     // of snapshots
	background sync.WaitGroup // connections of servers that left, and a refresh
	errs       []error        // of closing
}

// snapshot is the servers of one time. It is immutable.
type snapshot struct {
	list    []placement.Server
	servers []*server       // in the order of list
	view    *placement.View // nil: without servers
	changed <-chan struct{} // closed when the members change; nil: never
	zones   int64           // pool.zones
}

// start makes the first snapshot, which has no servers if the list is empty.
func (p *pool) start(now time.Time) error {
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.mu.Lock()
	defer p.mu.Unlock()
	list, changed := p.members.List()
	if len(list) == 0 {
		p.current.Store(&snapshot{changed: changed})
		return nil
	}
	return p.apply(&snapshot{}, list, changed, now)
}

// get returns the snapshot of now. A server that cannot be opened is left out until the next
// change.
func (p *pool) get(now time.Time) *snapshot {
	s := p.current.Load()
	if !p.stale(s, now) {
		return s
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if s = p.current.Load(); !p.stale(s, now) {
		return s
	}
	list, changed := p.members.List()
	_ = p.apply(s, list, changed, now) // after an error the old snapshot stays
	return p.current.Load()
}

// stale reports whether the members, their zones or the weights have changed.
func (p *pool) stale(s *snapshot, now time.Time) bool {
	select {
	case <-s.changed:
		return true
	default:
	}
	if s.view == nil {
		return false
	}
	if s.zones != p.zones.Load() {
		return true
	}
	next := s.view.Next()
	return !next.IsZero() && !now.Before(next)
}

// apply makes the snapshot of a list. The servers of the first list are not new. The caller holds
// mu.
func (p *pool) apply(old *snapshot, list []metadata.Member, changed <-chan struct{}, now time.Time) error {
	next := &snapshot{changed: changed, zones: p.zones.Load()}
	var errs []error
	for i := range list {
		m := &list[i]
		at := slices.IndexFunc(old.list, func(s placement.Server) bool { return s.Name == m.Name })
		var s *server
		of := placement.Server{Name: m.Name, Weight: m.Weight, Draining: m.Draining}
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
			if s = opened; at < 0 && len(old.list) > 0 {
				of.Joined = now
			}
		}
		of.Zone = *s.zone.Load()
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
	p.background.Go(func() {
		err := s.client.Close(context.Background())
		p.mu.Lock()
		defer p.mu.Unlock()
		p.errs = append(p.errs, err)
	})
}

// refreshPause is the least time between refreshes of the list.
const refreshPause = time.Second

// newer refreshes the list in the background, because a server has a list of a later epoch. The list
// may never have that epoch, if the directory was restored or is another one.
func (p *pool) newer(epoch uint64) {
	list, ok := p.members.(metadata.Versioned)
	if !ok || p.ctx.Err() != nil || list.Epoch() >= epoch || !p.refreshing.CompareAndSwap(false, true) {
		return
	}
	p.background.Go(func() {
		defer p.refreshing.Store(false)
		_ = list.Refresh(p.ctx, epoch) // the list counts failures
		select {
		case <-time.After(refreshPause):
		case <-p.ctx.Done():
		}
	})
}

// greeted takes the zone that a server reports. Empty: the one of the list stays.
func (p *pool) greeted(s *server, zone string) {
	if zone != "" && *s.zone.Swap(&zone) != zone {
		p.zones.Add(1)
	}
}

// errNoServers is the error of requests while the list has no servers.
var errNoServers = fmt.Errorf("no block server is known: %w", tier.ErrUnavailable)

// listErr returns the reason for a list without servers.
func (p *pool) listErr() error {
	if m, ok := p.members.(interface{ Err() error }); ok && m.Err() != nil {
		return m.Err()
	}
	return fmt.Errorf("the list is empty: %w", errdefs.ErrNotFound)
}

// closeAll closes all connections.
func (p *pool) closeAll(ctx context.Context) error {
	p.cancel()
	var errs []error
	for _, s := range p.current.Load().servers {
		errs = append(errs, s.client.Close(ctx))
	}
	p.background.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	return errors.Join(append(errs, p.errs...)...)
}

// route is the servers of a run at one time. It has none while the list has none.
type route struct {
	run   uint32
	reads []*server // in this order, until one has the block
	write *server   // gets new blocks; nil: none
	all   []*server // that may have blocks of the run
}

// route returns the route of the run with an anchor.
func (p *pool) route(anchor block.Key, now time.Time) *route {
	s := p.get(now)
	r := &route{run: placement.Run(anchor[:])}
	if s.view == nil {
		return r
	}
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
