package soft

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/rdma"
)

// running is the engine's part of a queue pair.
type running struct {
	mu          sync.Mutex   // held by the engine while it is at this queue pair, and by a reset
	issued      uint64       // requests that have started
	retired     uint64       // requests that have completed
	inflight    []*Transfer  // of requests that have started and not completed, in order
	delayedRead *Transfer    // a read of inflight whose bytes move later
	reads       int          // of inflight
	halted      bool         // one that has started will fail: no more start
	listed      bool         // in engine.active
	tries       int          // in vain, of the request that comes next
	due         time.Time    // when to try again; zero: now
	fault       *fault.Fault // what goes wrong with the request that comes next
	received    atomic.Uint32
}

// reset is called with mu held.
func (r *running) reset() {
	r.issued, r.retired, r.halted, r.delayedRead, r.reads = 0, 0, false, nil, 0
	r.inflight = nil
	r.tries, r.due, r.fault = 0, time.Time{}, nil
	r.received.Store(0)
}

// engine executes the requests of a provider's queue pairs by small steps: it starts one request, or completes one that has
// landed.
type engine struct {
	prov    *Provider
	wakeup  chan struct{} // has one place
	quit    chan struct{}
	stopped chan struct{}
	idle    atomic.Bool // a ring has to wake it

	mu       sync.Mutex
	notified []*qp // queue pairs with something to do, since the engine looked

	steps    sync.Mutex // held while a step is taken
	rng      *rand.Rand // draws the steps; nil: queue pairs take turns
	active   []*qp      // queue pairs with something to do or under way
	possible []step     // scratch: what is possible
	spare    []*Transfer
}

// step is something to do for a queue pair.
type step struct {
	q *qp
	action
}

type action uint8

const (
	begin  action = iota // start a request, or flush those that will not start
	land                 // let the bytes of the late read move
	finish               // complete the first that has landed
)

func newEngine(p *Provider, s *Schedule) *engine {
	e := &engine{prov: p, wakeup: make(chan struct{}, 1), quit: make(chan struct{}), stopped: make(chan struct{})}
	if s != nil {
		const stream = 0x736f6674
		e.rng = rand.New(rand.NewPCG(s.Seed, stream))
	}
	if p.manual() {
		close(e.stopped)
	} else {
		go e.loop()
	}
	return e
}

// stop ends the engine, which has nothing to do any more, and waits for it.
func (e *engine) stop() {
	close(e.quit)
	<-e.stopped
}

// ring tells the engine that q has something to do. Safe for concurrent use.
func (e *engine) notify(q *qp) {
	if q.notified.Swap(true) {
		return
	}
	e.mu.Lock()
	e.notified = append(e.notified, q)
	e.mu.Unlock()
	e.wake()
}

// kick wakes the engine.
func (e *engine) wake() {
	if !e.idle.Load() {
		return
	}
	select {
	case e.wakeup <- struct{}{}:
	default:
	}
}

func (e *engine) loop() {
	defer close(e.stopped)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		if e.step() {
			continue
		}
		// A ring after idle is set wakes the engine; an earlier one is found by the second look.
		e.idle.Store(true)
		if e.step() {
			e.idle.Store(false)
			continue
		}
		var alarm <-chan time.Time
		if d, ok := e.nextDue(); ok {
			timer.Reset(d)
			alarm = timer.C
		}
		select {
		case <-e.wakeup:
		case <-alarm:
		case <-e.quit:
			return
		}
		e.idle.Store(false)
	}
}

// step does one thing and reports whether there was anything to do.
func (e *engine) step() bool {
	e.steps.Lock()
	defer e.steps.Unlock()
	e.takeNotified()
	for {
		e.findSteps()
		if len(e.possible) == 0 {
			return false
		}
		n := 0
		if e.rng != nil {
			n = e.rng.IntN(len(e.possible))
		}
		if e.do(e.possible[n]) {
			return true
		}
	}
}

// listen takes over what was rung.
func (e *engine) takeNotified() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, q := range e.notified {
		q.notified.Store(false)
		if !q.run.listed {
			q.run.listed = true
			e.active = append(e.active, q)
		}
	}
	clear(e.notified)
	e.notified = e.notified[:0]
}

// look finds what is possible now, and forgets queue pairs that have nothing to do until they ring.
func (e *engine) findSteps() {
	e.possible = e.possible[:0]
	kept := e.active[:0]
	for _, q := range e.active {
		if e.options(q) {
			kept = append(kept, q)
		} else {
			q.run.listed = false
		}
	}
	clear(e.active[len(kept):])
	e.active = kept
}

// options adds what is possible for q, and reports whether q has anything to do, now or later.
func (e *engine) options(q *qp) bool {
	r := &q.run
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.inflight) > 0 && r.inflight[0].landed.Load() {
		e.possible = append(e.possible, step{q, finish})
	}
	if r.delayedRead != nil {
		e.possible = append(e.possible, step{q, land})
	}
	busy := len(r.inflight) > 0
	switch q.currentState() {
	case rdma.QPSErr:
		r.due = time.Time{}
		if !busy && q.hasPosted() {
			e.possible = append(e.possible, step{q, begin})
			busy = true
		}
	case rdma.QPSRTS:
		if r.halted || r.issued == q.tail.Load() || q.readsFull() {
			break
		}
		busy = true
		if r.due.IsZero() || !time.Now().Before(r.due) {
			e.possible = append(e.possible, step{q, begin})
		}
	default:
	}
	return busy
}

// hasPosted reports whether q has requests that can be flushed. The caller holds q.run.mu.
func (q *qp) hasPosted() bool {
	return q.run.retired < q.tail.Load() || q.srq == nil && q.rq.canFlush()
}

// readsFull reports whether q's next request is a read, and as many as its connection allows are under way. What it allows none
// of, fails when it starts. The caller holds q.run.mu.
func (q *qp) readsFull() bool {
	l := q.link.Load()
	return l != nil && l.attr.MaxRDAtomic > 0 && q.run.reads >= int(l.attr.MaxRDAtomic) && q.next().opcode == rdma.WRRDMARead
}

// next returns the first request that has not started.
func (q *qp) next() *sendWQE { return &q.sq[q.run.issued&q.mask] }

// do takes a step and reports whether anything came of it.
func (e *engine) do(s step) bool {
	q := s.q
	if e.rng == nil { // the others have their turn first
		for i, o := range e.active {
			if o == q {
				copy(e.active[i:], e.active[i+1:])
				e.active[len(e.active)-1] = q
				break
			}
		}
	}
	switch s.action {
	case finish:
		e.finish(q)
		return true
	case land:
		q.run.mu.Lock()
		late := q.run.delayedRead
		q.run.delayedRead = nil
		q.run.mu.Unlock()
		e.prov.o.Mover.Move(late)
		return true
	case begin:
	}
	return e.begin(q)
}

// begin starts the next request of q, or flushes what will not start, and reports whether it did. Bytes move without q.run.mu: the
// mover may take its time.
func (e *engine) begin(q *qp) bool {
	r := &q.run
	r.mu.Lock()
	if q.currentState() == rdma.QPSErr {
		defer r.mu.Unlock()
		return e.flush(q)
	}
	if q.currentState() != rdma.QPSRTS || r.halted || r.issued == q.tail.Load() { // it was reset since
		r.mu.Unlock()
		return false
	}
	r.due = time.Time{}
	t := e.start(q, q.next())
	if t == nil {
		r.mu.Unlock()
		return false
	}
	r.issued++
	r.inflight = append(r.inflight, t)
	if t.read {
		r.reads++
	}
	before, now := e.inOrder(r, t)
	r.mu.Unlock()
	for _, t := range [...]*Transfer{before, now} {
		if t != nil {
			e.prov.o.Mover.Move(t)
		}
	}
	return true
}

// inOrder returns the transfers to move now that t, the last of r, has started: one that was kept back, if it must move before, and
// t, each nil if not. With a schedule, the bytes of a read are taken at the peer in their turn, but may land here late: requests
// behind it start before they have landed, unless they have SendFence, and read and write memory here as it is. What they write at
// the peer the read does not see, and reads land in order.
func (e *engine) inOrder(r *running, t *Transfer) (before, now *Transfer) {
	w := &t.qp.sq[t.pos&t.qp.mask]
	if late := r.delayedRead; late != nil && (t.read || w.flags&rdma.SendFence != 0 || overlaps(t.Batch.Dst, late.Batch.Src)) {
		before, r.delayedRead = late, nil
	}
	switch {
	case len(t.Batch.Dst) == 0:
		t.landed.Store(true)
		return before, nil
	case e.rng != nil && t.read && e.rng.IntN(2) == 1:
		r.delayedRead = t
		return before, nil
	}
	return before, t
}

// nextDue returns how long to wait for the first of those that wait for a time.
func (e *engine) nextDue() (time.Duration, bool) {
	var first time.Time
	for _, q := range e.active {
		q.run.mu.Lock()
		due := q.run.due
		q.run.mu.Unlock()
		if !due.IsZero() && (first.IsZero() || due.Before(first)) {
			first = due
		}
	}
	return max(time.Until(first), 0), !first.IsZero()
}
