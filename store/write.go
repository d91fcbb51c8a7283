package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/tier"
)

// writeMany is how many blocks a writer takes at a time where a tier stores many for less (tier.ManyPutter).
const writeMany = 128

// writes is a writer's blocks: of any dumps, each in a slot that is pinned until it is in every tier.
type writes struct {
	s      *Store
	blocks []write
}

type write struct {
	t    *DumpTask
	i    int32
	slot tier.Slot
	errs []error
}

// write stores blocks of dumps in every tier below that can be written.
func (s *Store) write(jobs []job) {
	w := writes{s: s, blocks: make([]write, 0, len(jobs))}
	for _, j := range jobs {
		t, ok := j.w.(*DumpTask)
		if !ok {
			panic(fmt.Sprintf("store: a %T is to be written", j.w))
		}
		it := &t.sc.items[j.i]
		w.blocks = append(w.blocks, write{t: t, i: j.i, slot: it.slot})
		it.slot = nil
	}
	for at := range s.durable {
		w.to(at)
	}
	for k := range w.blocks {
		b := &w.blocks[k]
		b.slot.Release()
		b.t.one(b.i, errors.Join(b.errs...))
	}
}

// to stores the blocks in one tier: together where it can do that.
func (w *writes) to(at int) {
	many, able := w.s.durable[at].(tier.ManyPutter)
	var together []*write
	for k := range w.blocks {
		b := &w.blocks[k]
		switch err := context.Cause(b.t.ctx); {
		case err != nil:
			b.wrote(at, err)
		case able && len(w.blocks) > 1:
			together = append(together, b)
		default:
			b.wrote(at, w.s.writeTo(b.t.ctx, at, func(wait context.Context) error {
				return w.s.durable[at].Put(wait, b.key(), b.image())
			}))
		}
	}
	if len(together) == 0 {
		return
	}
	keys, images, errs := make([]block.Key, len(together)), make([]mem.Extent, len(together)), make([]error, len(together))
	for k, b := range together {
		keys[k], images[k] = b.key(), b.image()
	}
	ctx, end := untilAllEnd(together)
	defer end()
	_ = w.s.writeTo(ctx, at, func(wait context.Context) error {
		many.PutMany(wait, keys, images, errs)
		return errs[max(0, slices.IndexFunc(errs, isBusy))] // where one found no room, the next will not either
	})
	for k, b := range together {
		b.wrote(at, errs[k])
	}
}

// untilAllEnd returns a context that ends when those of all the blocks' dumps have: one that is canceled takes nothing from the others.
// What was asked for of it is written all the same.
func untilAllEnd(blocks []*write) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(context.Background())
	var tasks []*DumpTask
	for _, b := range blocks {
		if !slices.Contains(tasks, b.t) {
			tasks = append(tasks, b.t)
		}
	}
	var left atomic.Int64
	left.Store(int64(len(tasks)))
	stops := make([]func() bool, 0, len(tasks))
	for _, t := range tasks {
		stops = append(stops, context.AfterFunc(t.ctx, func() {
			if left.Add(-1) == 0 {
				cancel(context.Cause(t.ctx))
			}
		}))
	}
	return ctx, func() {
		for _, stop := range stops {
			stop()
		}
		cancel(nil)
	}
}

func (b *write) key() block.Key { return b.t.sc.refs[b.i].Key }

func (b *write) image() mem.Extent { return b.t.s.imageOf(b.slot.Extent(), b.t.sc.items[b.i].group) }

// wrote takes note of what came of writing the block to a tier.
func (b *write) wrote(at int, err error) {
	if err == nil {
		return
	}
	s, name := b.t.s, b.t.s.durable[at].Name()
	if bad(err) {
		// What the tier found wrong is this copy: the transfer to the slot went wrong, or the slot's memory since.
		b.slot.Corrupt(err)
		s.count.corrupt.Add(1)
		s.cfg.Hooks.corrupt(s.cache.Name(), b.key(), err)
	} else {
		s.count.tierErrors.Add(1)
	}
	b.errs = append(b.errs, fmt.Errorf("tier %s: %w", name, err))
	s.count.durableFailures.Add(1)
	s.cfg.Hooks.durableFailed(name, b.key(), err)
}

// fullWait is how long a write waits for room where the one before it waited in vain: long enough for room that there is.
const fullWait = 10 * time.Millisecond

// writeTo calls put, which stores blocks in a tier. It waits for room as long as the store says, but where another has just done so in
// vain: the waits of all that queue behind it must not add up.
func (s *Store) writeTo(ctx context.Context, at int, put func(wait context.Context) error) error {
	most := s.cfg.WaitMax
	if s.full[at].Load() {
		most = min(most, fullWait)
	}
	wait, cancel := s.waitFor(ctx, most)
	defer cancel()
	err := put(wait)
	switch {
	case err == nil:
		s.full[at].Store(false)
	case errors.Is(err, errdefs.ErrBusy) && ctx.Err() == nil:
		s.full[at].Store(true)
	}
	return err
}
