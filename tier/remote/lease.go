package remote

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/blockio"
	"github.com/kvlane/kvlane/errdefs"
)

// lease is a lease of a server. pins is the number of pins of its keys. It is renewed while it has
// pins. The tier's mu guards pins and timer.
type lease struct {
	s     *server
	l     *blockio.Lease
	pins  int
	timer *time.Timer // of the next renewal; nil before the first pin
}

// Retain leases the blocks at their servers, with one request to each server. The lease is renewed
// until Release, and ends with the connection or if the server does not renew it. A block of an
// ended lease may be a miss of Get.
func (t *Tier) Retain(ctx context.Context, keys []block.Key) (int, error) {
	if err := t.ops.BeginOp(ctx); err != nil {
		return 0, fmt.Errorf("retain %d blocks: %w", len(keys), err)
	}
	defer t.ops.EndOp()
	if len(keys) == 0 {
		return 0, nil
	}
	groups := t.group(keys)
	leases := make([]*lease, len(groups))
	t.each(groups, func(i int, g *group) {
		err := g.s.call(ctx, t.c.Timeout, func(ctx context.Context) error {
			l, err := g.s.client.Lease(ctx, g.entries, leaseTime)
			if err == nil {
				leases[i] = &lease{s: g.s, l: l}
			}
			return err
		})
		t.failed(err)
	})
	present := make(map[block.Key]*lease, len(keys))
	for i, l := range leases {
		for n := 0; l != nil && n < l.l.Keys(); n++ {
			present[groups[i].entries[n].Key] = l
		}
	}
	n, err := 0, ended(ctx)
	if err == nil {
		n = t.pin(keys, present)
	}
	for _, l := range leases {
		t.mu.Lock()
		unused := l != nil && l.pins == 0
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
