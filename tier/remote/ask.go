package remote

import (
	"context"
	"sync"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/blockio"
)

// group has the different keys that one server is asked for in a round.
type group struct {
	s       *server
	missed  *server // first server that answered without the keys; nil: none
	run     uint32  // of the first key
	entries []blockio.KeyEntry
	next    [][]*server // servers of each entry that are not asked yet
	found   []bool      // of each entry
	err     error       // of the request
}

// number returns a context by which the server counts requests of the first run.
func (g *group) number(ctx context.Context) context.Context {
	if g.run == 0 {
		return ctx
	}
	return blockio.WithRun(ctx, g.run)
}

// reading and writing return the servers that are asked about a run, one after the other.
func (r *route) reading() []*server { return r.reads }

func (r *route) writing() []*server {
	if r.write == nil {
		return nil
	}
	return []*server{r.write}
}

// question is a key with the servers to ask for it, one after the other.
type question struct {
	entry   blockio.KeyEntry
	run     uint32
	servers []*server
	missed  *server // that answered without the key; nil: none
}

// questions returns a question for each different key. Keys of unknown page groups are left out,
// and all keys while there are no servers.
func (t *Tier) questions(keys []block.Key, servers func(*route) []*server) []question {
	now := t.c.Clock.Now()
	if len(t.pool.get(now).servers) == 0 {
		t.failed(errNoServers)
		return nil
	}
	routes := make(map[block.Key]*route) // by anchor
	seen := make(map[block.Key]bool, len(keys))
	out := make([]question, 0, len(keys))
	for _, key := range keys {
		format, err := t.c.Formats.Of(key)
		if err != nil || seen[key] {
			continue
		}
		seen[key] = true
		anchor := t.anchor(key)
		r := routes[anchor]
		if r == nil {
			r = t.pool.route(anchor, now)
			routes[anchor] = r
		}
		out = append(out, question{blockio.KeyEntry{Key: key, Identity: blockio.IdentityHash(format.Identity)}, r.run, servers(r), nil})
	}
	return out
}

// grouped groups questions by their next server and the one that missed.
func grouped(questions []question) (groups []*group) {
	of := make(map[[2]*server]*group)
	for i := range questions {
		q := &questions[i]
		at := [2]*server{q.servers[0], q.missed}
		g := of[at]
		if g == nil {
			g = &group{s: q.servers[0], missed: q.missed, run: q.run}
			of[at], groups = g, append(groups, g)
		}
		g.entries, g.next, g.found = append(g.entries, q.entry), append(g.next, q.servers[1:]), append(g.found, false)
	}
	return groups
}

// ask asks in rounds: f asks one server for a group, and sets its found keys. Keys that are not
// found are asked for at their next server. The groups of a round are asked concurrently. After
// each round found is called for each key that was found in it.
func (t *Tier) ask(ctx context.Context, questions []question, f func(context.Context, *group) error, found func(blockio.KeyEntry, *group)) {
	for len(questions) > 0 && ctx.Err() == nil {
		groups := grouped(questions)
		each(groups, func(g *group) {
			g.err = f(ctx, g)
			t.failed(g.err)
		})
		questions = nil
		for _, g := range groups {
			missed := g.missed
			if missed == nil && g.err == nil {
				missed = g.s
			}
			for i, entry := range g.entries {
				if g.found[i] {
					found(entry, g)
				} else if len(g.next[i]) > 0 {
					questions = append(questions, question{entry, g.run, g.next[i], missed})
				}
			}
		}
	}
}

// each calls f for each group, concurrently.
func each(groups []*group, f func(g *group)) {
	var wg sync.WaitGroup
	for _, g := range groups[1:] {
		wg.Go(func() { f(g) })
	}
	f(groups[0])
	wg.Wait()
}
