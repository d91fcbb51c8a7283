package store_test

import (
	"context"
	"sync"

	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream"
)

// opBus is the operation name under which bus consults its plan. One operation is one batch from
// slots to pages.
const opBus = "bus"

// bus is a stream for loads that corrupts copies. It flips a bit of the page and leaves the slot
// unchanged.
type bus struct {
	stream.Stream
	plan *fault.Plan
	wg   sync.WaitGroup
}

func (s *bus) Submit(ctx context.Context, b *mem.Batch) (*stream.Ticket, error) {
	if b.Paged == nil {
		return s.Stream.Submit(ctx, b)
	}
	f, hit := s.plan.Hit(opBus)
	if !hit {
		return s.Stream.Submit(ctx, b)
	}
	g := &b.Paged.Groups[0]
	pl := &g.Planes[f.Rand%uint64(len(g.Planes))]
	slot := g.Slots.At(g.Pairs[f.Rand>>8%uint64(len(g.Pairs))].Slot).Sub(pl.SlotOff, pl.Bytes).Bytes()
	at, bit := f.Rand>>16%uint64(len(slot)), byte(1)<<(f.Rand>>61)
	slot[at] ^= bit
	inner, err := s.Stream.Submit(ctx, b)
	if err != nil {
		slot[at] ^= bit
		return nil, err
	}
	outer := stream.NewTicket(inner.ID(), inner.Cancel)
	s.wg.Go(func() {
		<-inner.Done()
		slot[at] ^= bit
		outer.Resolve(inner.Completion(), inner.Err())
	})
	return outer, nil
}

func (s *bus) Close(ctx context.Context) error {
	if err := s.Stream.Close(ctx); err != nil {
		return err
	}
	s.wg.Wait()
	return nil
}
