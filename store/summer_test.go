package store_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream"
)

// summer is a stream that computes the checksums of its copies on the CPU: from the pages that a
// dump reads or a load has written. Checksums of a load include simulated faults of the copy; those
// of a dump do not.
type summer struct {
	stream.Stream
	r     *rig
	every int // which batches that request checksums get them: 1 for all, 2 for every second one, or noSums
	// memo caches the checksums of pages that never change, so that they cost no time in
	// benchmarks, as on a GPU. The key is the page and the offset of its first plane in a slot.
	memo map[[2]int64][]uint64

	queue device.Queue
	stage *mem.Region
	jobs  chan submitted
	done  chan struct{}
	once  sync.Once

	mu     sync.Mutex
	n      int
	broken error
}

// noSums disables checksums, also those of the inner stream.
const noSums = -1

type submitted struct {
	b            *mem.Batch
	inner, outer *stream.Ticket
	sum          bool
}

func newSummer(r *rig, st stream.Stream, every int) (stream.Stream, error) {
	s := &summer{Stream: st, r: r, every: every, jobs: make(chan submitted, 4096), done: make(chan struct{})}
	var err error
	if s.queue, err = r.dev.OpenQueue(device.QueueOptions{}); err != nil {
		return nil, err
	}
	if r.o.memo {
		s.memo = make(map[[2]int64][]uint64)
	}
	if s.stage, err = r.dev.AllocHost(r.blockBytes()); err != nil {
		return nil, errors.Join(err, s.queue.Close(context.Background()))
	}
	go s.run()
	return s, nil
}

func (s *summer) Submit(ctx context.Context, b *mem.Batch) (*stream.Ticket, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.broken != nil {
		return nil, fmt.Errorf("submit: %w: %w", errdefs.ErrBroken, s.broken)
	}
	plain := *b
	if b.Paged != nil {
		plain.Paged = &mem.Paged{Dir: b.Paged.Dir, Groups: b.Paged.Groups}
	}
	inner, err := s.Stream.Submit(ctx, &plain)
	if err != nil {
		return nil, err
	}
	w := submitted{b: b, inner: inner, outer: stream.NewTicket(inner.ID(), inner.Cancel)}
	if b.Paged != nil && b.Paged.Sums != nil {
		s.n++
		w.sum = s.every != noSums && s.n%s.every == 0
	}
	s.jobs <- w
	return w.outer, nil
}

// run resolves the outer tickets in order.
func (s *summer) run() {
	defer close(s.done)
	for w := range s.jobs {
		<-w.inner.Done()
		c, err := w.inner.Completion(), w.inner.Err()
		c.Summed = false
		if err == nil && w.sum {
			if err = s.sum(w.b.Paged); err != nil {
				s.mu.Lock()
				s.broken = err
				s.mu.Unlock()
			}
			c.Summed = err == nil
		}
		w.outer.Resolve(c, err)
	}
}

func (s *summer) sum(p *mem.Paged) error {
	sums := p.Sums
	for i := range p.Groups {
		g := &p.Groups[i]
		for _, ps := range g.Pairs {
			id, leaves := [2]int64{int64(ps.Page), g.Planes[0].SlotOff}, sums
			if known := s.memo[id]; known != nil {
				sums = sums[copy(sums, known):]
				continue
			}
			at := int64(0)
			for j := range g.Planes {
				page := g.Planes[j].Page(ps.Page)
				if err := s.queue.Copy(mem.Extent{Region: s.stage, Off: at, Len: page.Len}, page); err != nil {
					return err
				}
				at += page.Len
			}
			ev, err := s.queue.Record()
			if err == nil {
				err = ev.Wait(context.Background())
				ev.Close()
			}
			if err != nil {
				return err
			}
			for b := s.stage.Bytes()[:at]; len(b) > 0; b = b[mem.LeafBytes:] {
				sums[0] = block.SumLeaf(b[:mem.LeafBytes])
				sums = sums[1:]
			}
			if s.memo != nil {
				s.memo[id] = slices.Clone(leaves[:len(leaves)-len(sums)])
			}
		}
	}
	return nil
}

func (s *summer) Close(ctx context.Context) error {
	if err := s.Stream.Close(ctx); err != nil {
		return err
	}
	var err error
	s.once.Do(func() {
		close(s.jobs)
		<-s.done
		if err = s.queue.Close(ctx); err == nil {
			err = s.r.dev.Free(s.stage)
		}
	})
	return err
}
