package bench

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream"
)

// traffic does work that moves bytes, or leaves it.
type traffic struct {
	// work goes on until quit, and calls moved for what is done.
	work  func(ctx context.Context, quit *atomic.Bool, moved func(bytes int64)) error
	total atomic.Int64 // bytes that are done

	// Of the goroutine that works; ended is nil while there is none.
	quit  *atomic.Bool
	warm  chan struct{} // closed when something is done
	ended chan error    // receives its error, and is closed
	// closing is ended of a goroutine that was told to quit.
	closing chan error
}

// batches keep a stream busy.
type batches struct {
	s     stream.Stream
	plans []*plan
	// traveled is the path of the last batch; run writes it, and whoever has waited for run's end may read it.
	traveled stream.Path
}

func (b *bench) newBatches(s stream.Stream, dir Direction) *batches {
	t := &batches{s: s}
	c := Cell{Size: b.o.BesideSize, Count: b.besideBlocks()}
	form := b.o.Form
	if c.Size%mem.LeafBytes != 0 && form == PagesSummed {
		form = Pages
	}
	for range besideDepth {
		// That they may write the same bytes does no harm, as nobody reads them.
		p := b.newPlan(form, c.Count, c, dir, b.o.BesideLayout)
		p.Draw(b.rng)
		p.Write()
		t.plans = append(t.plans, p)
	}
	return t
}

// set makes the traffic flow or not, without waiting until it does.
func (t *traffic) set(ctx context.Context, on bool) error {
	switch {
	case on && t.ended == nil:
		if err := t.drained(); err != nil {
			return err
		}
		t.quit, t.warm, t.ended = new(atomic.Bool), make(chan struct{}), make(chan error, 1)
		go func(quit *atomic.Bool, warm chan struct{}, ended chan error) {
			first := sync.OnceFunc(func() { close(warm) })
			ended <- t.work(ctx, quit, func(bytes int64) { t.total.Add(bytes); first() })
			close(ended)
		}(t.quit, t.warm, t.ended)
	case !on && t.ended != nil:
		t.quit.Store(true)
		t.closing, t.ended = t.ended, nil
	}
	return nil
}

// settled reports whether what set asked for is so: batches arrive, or none is under way. An error counts as settled; stop
// tells it.
func (t *traffic) settled() bool {
	if t.ended != nil {
		select {
		case <-t.warm:
			return true
		default:
			return t.failed()
		}
	}
	return t.closing == nil || len(t.closing) > 0
}

// failed reports whether it ended without being told to.
func (t *traffic) failed() bool { return len(t.ended) > 0 }

// drained waits until a goroutine that was told to quit has returned.
func (t *traffic) drained() error {
	if t.closing == nil {
		return nil
	}
	err := <-t.closing
	t.closing = nil
	return err
}

// stop ends the traffic and waits until nothing is under way.
func (t *traffic) stop() error {
	_ = t.set(context.Background(), false) // starting alone can fail
	return t.drained()
}

// run keeps besideDepth batches submitted until quit.
func (t *batches) run(ctx context.Context, quit *atomic.Bool, moved func(bytes int64)) error {
	var tickets [besideDepth]*stream.Ticket
	submit := func(i int) (err error) {
		tickets[i], err = t.s.Submit(ctx, &t.plans[i].Batches()[0])
		return err
	}
	for i := range t.plans {
		if err := submit(i); err != nil {
			return err
		}
	}
	for n := 0; !quit.Load(); n++ {
		i := n % besideDepth
		if err := tickets[i].Wait(ctx); err != nil {
			return err
		}
		moved(t.plans[i].Bytes())
		t.traveled = tickets[i].Completion().Path
		if err := submit(i); err != nil {
			return err
		}
	}
	for _, k := range tickets {
		if err := k.Wait(ctx); err != nil {
			return err
		}
	}
	return nil
}
