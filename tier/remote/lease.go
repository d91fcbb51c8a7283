package remote

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/blockio"
	"github.com/kvlane/kvlane/errdefs"
)

// lease is a lease of a server. pins is the number of pins of its keys. It is renewed while it has
// pins. The tier's mu guards pins and timer.
type lease struct {
	s      *server
	missed *server // that should have the blocks and does not; nil: none
	l      *blockio.Lease
	pins   int
	timer  *time.Timer // of the next renewal; nil before the first pin
}

// Retain leases the blocks at their servers, with one request to each server. Blocks of hot runs,
// and of servers that join or leave, are looked up before. The lease is renewed until Release, and
// ends with the connection or if the server does not renew it. A block of an ended lease may be a
// miss of Get.
func (t *Tier) Retain(ctx context.Context, keys []block.Key) (int, error) {
	if err := t.ops.BeginOp(ctx); err != nil {
		return 0, fmt.Errorf("retain %d blocks: %w", len(keys), err)
	}
	defer t.ops.EndOp()
	if len(keys) == 0 {
		return 0, nil
	}
	var mu sync.Mutex
	var leases []*lease
	of := make(map[*group]*lease)
	present := make(map[block.Key]*lease, len(keys))
	t.ask(ctx, t.located(ctx, keys), func(ctx context.Context, g *group) error {
		return g.s.call(ctx, t.c.Timeout, func(ctx context.Context) error {
			l, err := g.s.client.Lease(g.number(ctx), g.entries, leaseTime)
			if err != nil {
				return err
			}
			for i := range l.Keys() {
				g.found[i] = true
			}
			mu.Lock()
			defer mu.Unlock()
			of[g] = &lease{s: g.s, missed: g.missed, l: l}
			leases = append(leases, of[g])
			return nil
		})
	}, func(e blockio.KeyEntry, g *group) { present[e.Key] = of[g] })
	n, err := 0, ended(ctx)
	if err == nil {
		n = t.pin(keys, present)
	}
	for _, l := range leases {
		t.mu.Lock()
		unused := l.pins == 0
		t.mu.Unlock()
		if unused {
			t.release(l)
		}
	}
	if err != nil {
		return 0, fmt.Errorf("retain %d blocks: %w", len(keys), err)
	}
	if n < len(keys) {
		t.misses.Add(1)
	}
	return n, nil
}

// located returns questions with one server each, because a lease is of the longest prefix of its
// keys. If blocks may be at several servers, it asks which one has them. Blocks that no server has
// are left out.
func (t *Tier) located(ctx context.Context, keys []block.Key) []question {
	all := t.questions(keys, (*route).reading)
	if !slices.ContainsFunc(all, func(q question) bool { return len(q.servers) > 1 }) {
		return all
	}
	at := make(map[block.Key]*group, len(all))
	t.ask(ctx, all, t.exist, func(e blockio.KeyEntry, g *group) { at[e.Key] = g })
	var out []question
	for _, q := range all {
		if g := at[q.entry.Key]; g != nil {
			out = append(out, question{q.entry, q.run, []*server{g.s}, g.missed})
		}
	}
	return out
}

// ended returns the cause of the end of ctx, or nil.
func ended(ctx context.Context) error {
	if ctx.Err() == nil {
		return nil
	}
	return cmp.Or(context.Cause(ctx), ctx.Err())
}

// pin pins keys up to the first one that is not present.
func (t *Tier) pin(keys []block.Key, present map[block.Key]*lease) (n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, key := range keys {
		l := present[key]
		if l == nil {
			break
		}
		if l.pins++; l.timer == nil {
			t.schedule(l)
		}
		t.pins[key] = append(t.pins[key], l)
		t.retained++
		n++
	}
	return n
}

// Release undoes Retain. It does not wait for the servers.
func (t *Tier) Release(keys []block.Key) {
	for _, l := range t.unpin(keys) {
		t.release(l)
	}
}

// unpin removes a pin of each key, and returns the leases without pins.
func (t *Tier) unpin(keys []block.Key) (ended []*lease) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, key := range keys {
		of := t.pins[key]
		if len(of) == 0 {
			panic(fmt.Sprintf("remote: release of block %s, which is not retained", key))
		}
		l := of[len(of)-1]
		if of = of[:len(of)-1]; len(of) == 0 {
			delete(t.pins, key)
		} else {
			t.pins[key] = of
		}
		t.retained--
		if l.pins--; l.pins == 0 {
			l.timer.Stop()
			ended = append(ended, l)
		}
	}
	return ended
}

// schedule sets the timer of a renewal, at half of the time that is left. The caller holds mu.
func (t *Tier) schedule(l *lease) {
	l.timer = time.AfterFunc(max(time.Until(l.l.Expires())/2, renewPause), func() { t.renew(l) })
}

// renew renews a lease that has pins. If the server does not answer, it tries again, until the
// lease ends.
func (t *Tier) renew(l *lease) {
	if t.ops.BeginOp(context.Background()) != nil {
		return // the connection ends, and the lease with it
	}
	defer t.ops.EndOp()
	t.mu.Lock()
	held := l.pins > 0
	t.mu.Unlock()
	if !held {
		return
	}
	var expired bool
	err := l.s.call(context.Background(), t.c.Timeout, func(ctx context.Context) error {
		err := l.l.Renew(ctx, leaseTime)
		if expired = errors.Is(err, errdefs.ErrExpired); expired {
			return nil
		}
		return err
	})
	t.failed(err)
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case expired || !time.Now().Before(l.l.Expires()):
		t.lost.Add(1)
	case l.pins > 0:
		t.schedule(l)
	}
}

// release ends a lease at its server, in the background. If that fails, it ends there with its
// time or connection.
func (t *Tier) release(l *lease) {
	if l.l.Keys() == 0 {
		return
	}
	if t.ops.BeginOp(context.Background()) != nil {
		return // the connection ends, and the lease with it
	}
	l.s.beginRelease()
	go func() {
		defer t.ops.EndOp()
		defer l.s.endRelease()
		_ = l.s.call(context.Background(), t.c.Timeout, func(ctx context.Context) error {
			if err := l.l.Release(ctx); err != nil && ctx.Err() != nil {
				return err
			}
			return nil
		})
	}()
}
