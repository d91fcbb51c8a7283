package remote

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/blockio"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/placement"
	"github.com/kvlane/kvlane/tier"
)

// reason is a server that may have the blocks of a run, and why.
type reason struct {
	s   *server
	why string
}

// reasons returns the servers that may have blocks of the run with an anchor, its home first. There
// are none while the list has none.
func (p *pool) reasons(anchor block.Key, now time.Time) (all []reason) {
	s := p.get(now)
	if s.view == nil {
		return nil
	}
	k := p.marks.Replicas(placement.Run(anchor[:]), now)
	var buf [placement.MaxReplicas]int
	order := s.view.Order(anchor[:], max(k, 2), buf[:0])
	add := func(i int, format string, args ...any) {
		for _, r := range all {
			if r.s == s.servers[i] {
				return
			}
		}
		all = append(all, reason{s.servers[i], fmt.Sprintf(format, args...)})
	}
	add(order[0], "home of its run")
	for n, i := range order[1:min(max(k, 1), len(order))] {
		add(i, "replica %d of its hot run", n+1)
	}
	if i := s.view.Previous(anchor[:], order[0]); i != placement.None {
		if s.list[i].Draining {
			add(i, "home of its run until it began to drain")
		} else {
			add(i, "home of its run before %s joined", s.list[order[0]].Name)
		}
	}
	if _, was := s.servers[order[0]].leftOut(now); len(order) > 1 && was {
		add(order[1], "stands in for the home %s, which did not answer", s.servers[order[0]].address)
	}
	return all
}

// questioned is the state of a server in Explain.
type questioned struct {
	group
	at []int // indices of the keys
}

// Explain implements tier.Explainer. It asks all servers that may have a block, with one request to
// each. Place is the server that has the block, or the one that should have it. A server that does
// not answer is the Error of the blocks that no other server has.
func (t *Tier) Explain(ctx context.Context, keys []block.Key, out []tier.Explanation) error {
	if len(keys) != len(out) {
		return fmt.Errorf("explain %d blocks with space for %d: %w", len(keys), len(out), errdefs.ErrInvalid)
	}
	if err := t.ops.BeginOp(ctx); err != nil {
		return fmt.Errorf("explain %d blocks: %w", len(keys), err)
	}
	defer t.ops.EndOp()
	now := t.c.Clock.Now()
	reasons := make([][]reason, len(keys))
	of := make(map[*server]*questioned)
	for i, key := range keys {
		f, err := t.c.Formats.Of(key)
		if err != nil {
			out[i] = tier.Explanation{}
			continue
		}
		reasons[i] = t.pool.reasons(t.anchor(key), now)
		for _, r := range reasons[i] {
			q := of[r.s]
			if q == nil {
				q = &questioned{group: group{s: r.s}}
				of[r.s] = q
			}
			q.entries = append(q.entries, blockio.KeyEntry{Key: key, Identity: blockio.IdentityHash(f.Identity)})
			q.found, q.at = append(q.found, false), append(q.at, i)
		}
	}
	var wg sync.WaitGroup
	for _, q := range of {
		wg.Go(func() { q.err = t.exist(ctx, &q.group) })
	}
	wg.Wait()
	if err := ended(ctx); err != nil {
		return fmt.Errorf("explain %d blocks: %w", len(keys), err)
	}
	has := make(map[*server]map[int]bool)
	for s, q := range of {
		has[s] = make(map[int]bool)
		for n, i := range q.at {
			has[s][i] = q.found[n]
		}
	}
	for i := range keys {
		out[i] = explanation(reasons[i], func(s *server) (bool, error) { return has[s][i], of[s].err })
		if len(t.pool.get(now).servers) == 0 {
			out[i].Error = fmt.Sprintf("%v: %v", errNoServers, t.pool.listErr())
		}
	}
	return nil
}

// explanation returns the explanation of a block. answer reports whether a server has the block.
func explanation(all []reason, answer func(s *server) (bool, error)) (e tier.Explanation) {
	for n, r := range all {
		found, err := answer(r.s)
		switch {
		case found && e.State != tier.Ready:
			e = tier.Explanation{State: tier.Ready, Place: r.s.address, Reason: "at block server " + r.s.address + ": " + r.why}
		case found:
			e.Reason += ", and at " + r.s.address + ": " + r.why
		case e.State == tier.Ready:
		case n == 0:
			e.Place, e.Reason = r.s.address, "asked block server "+r.s.address+": "+r.why
		default:
			e.Reason += ", and " + r.s.address + ": " + r.why
		}
		if err != nil && e.State != tier.Ready && e.Error == "" {
			e.Error = err.Error()
		}
	}
	return e
}
