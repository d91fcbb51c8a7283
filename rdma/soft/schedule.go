package soft

import (
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/rdma"
)

// chooser takes the steps of an engine in an order drawn from a seed.
type chooser struct {
	mu  sync.Mutex // held while a step is taken
	rng *rand.Rand
	can []int // scratch: what is possible, as pick numbers it
	// round tells the transfers of one queue pair apart from those looked at in earlier steps.
	round uint64
}

func newScheduledEngine(p *Provider, s Schedule) *engine {
	const stream = 0x736f6674
	e := &engine{
		prov: p, wake: make(chan struct{}, 1), quit: make(chan struct{}), stopped: make(chan struct{}),
		near: newNearby(), chooser: &chooser{rng: rand.New(rand.NewPCG(s.Seed, stream))},
	}
	if s.Manual {
		close(e.stopped)
	} else {
		go e.loop()
	}
	return e
}

// A read's bytes are taken at the peer in their turn, but may land here late: requests behind it start before they have
// landed, unless they have SendFence, and read and write memory here as it is. What they write at the peer the read does
// not see, and reads land in order.

// keepsBack draws whether the bytes of a transfer that was launched move later.
func (c *chooser) keepsBack(t *Transfer) bool {
	if !t.read || c.rng.IntN(2) == 0 {
		return false
	}
	t.items[0].qp.run.late = t
	return true
}

// watch is told of each request that starts. Where it must not overtake the read that is kept back, that moves first.
func (c *chooser) watch(e *engine, q *qp, w *sendWQE) {
	read := w.opcode == rdma.WRRDMARead
	if late := q.run.late; late != nil && (read || w.flags&rdma.SendFence != 0 || overlaps(e.plan.dst, &late.Batch)) {
		c.release(e, late)
	}
	e.transfer().read = read
}

// readsFull reports whether q's next request is a read, and as many as its connection allows are under way. What it allows none
// of, fails when it starts.
func (e *engine) readsFull(q *qp) bool {
	q.run.mu.Lock()
	defer q.run.mu.Unlock()
	l := q.link.Load()
	if l == nil || l.attr.MaxRDAtomic == 0 || q.at() != rdma.QPSRTS || q.run.issued == q.tail.Load() || q.sq[q.run.issued&q.mask].opcode != rdma.WRRDMARead {
		return false
	}
	reads := 0
	for _, t := range e.inflight {
		if t.read && t.items[0].qp == q {
			reads++
		}
	}
	return reads >= int(l.attr.MaxRDAtomic)
}

func (c *chooser) release(e *engine, late *Transfer) {
	late.items[0].qp.run.late = nil
	e.prov.o.Mover.Move(late)
}

// overlaps reports whether any of to overlaps a source of b.
func overlaps(to []mem.Extent, b *mem.Batch) bool {
	for _, y := range b.Extents() {
		for _, x := range to {
			if address(x) < address(y)+uint64(y.Len) && address(y) < address(x)+uint64(x.Len) {
				return true
			}
		}
	}
	return false
}

// step starts one request, lets the bytes of one move that were kept back, or lets one that has landed complete; false where
// nothing is possible now.
func (c *chooser) step(e *engine) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	e.listen()
	for {
		i, ok := c.pick(e)
		if !ok {
			return false
		}
		if i >= 0 {
			t := e.inflight[i]
			if t.items[0].qp.run.late == t {
				c.release(e, t)
				return true
			}
			e.inflight = slices.Delete(e.inflight, i, i+1)
			e.finish(t)
			return true
		}
		i = ^i
		worked, next := e.visit(e.active[i], 1)
		if next == resting {
			e.active = slices.Delete(e.active, i, i+1)
		}
		e.launch() // one request a transfer
		if worked {
			return true
		}
	}
}

// pick draws one of the steps that are possible: i is the place in engine.inflight of a transfer that is kept back, or that
// may complete, being the first of its queue pair, or the complement of the place in engine.active of a queue pair that may
// start a request.
func (c *chooser) pick(e *engine) (i int, ok bool) {
	c.can = c.can[:0]
	c.round++
	for i, t := range e.inflight {
		first := true
		for _, it := range t.items {
			if it.qp.run.round == c.round {
				first = false
			}
			it.qp.run.round = c.round
		}
		if first && t.landed.Load() || t.items[0].qp.run.late == t {
			c.can = append(c.can, i)
		}
	}
	now := time.Now()
	for i, q := range e.active {
		q.run.mu.Lock()
		due := q.run.due
		q.run.mu.Unlock()
		if !now.Before(due) && !e.readsFull(q) {
			c.can = append(c.can, ^i)
		}
	}
	if len(c.can) == 0 {
		return 0, false
	}
	return c.can[c.rng.IntN(len(c.can))], true
}
