package soft

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/rdma"
)

// running is the execution state of a queue pair.
type running struct {
	mu          sync.Mutex   // held by the engine during a step of the queue pair, and by a reset
	issued      uint64       // number of started requests
	retired     uint64       // number of completed requests
	inflight    []*Transfer  // transfers of started requests that have not completed, in order
	delayedRead *Transfer    // a read in inflight whose bytes move later
	reads       int          // number of reads in inflight
	halted      bool         // a started request will fail, so no more requests start
	listed      bool         // the queue pair is in engine.active
	tries       int          // failed attempts to start the next request
	due         time.Time    // earliest time of the next attempt; zero: now
	fault       *fault.Fault // fault of the next request
	received    atomic.Uint32
}

// reset resets the state. The caller holds mu.
func (r *running) reset() {
	r.issued, r.retired, r.halted, r.delayedRead, r.reads = 0, 0, false, nil, 0
	r.inflight = nil
	r.tries, r.due, r.fault = 0, time.Time{}, nil
	r.received.Store(0)
}

// engine executes the requests of the queue pairs in small steps. A step starts a request, moves
// the bytes of a delayed read, or completes a request whose transfer is done.
type engine struct {
	prov    *Provider
	wakeup  chan struct{} // capacity 1
	quit    chan struct{}
	stopped chan struct{}
	idle    atomic.Bool // the engine waits for wakeup

	mu       sync.Mutex
	notified []*qp // queue pairs notified since the last takeNotified

	steps         sync.Mutex // held during a step
	rng           *rand.Rand // chooses the steps; nil: queue pairs alternate
	active        []*qp      // queue pairs with steps to do or requests in progress
	possible      []step     // reused buffer of possible steps
	freeTransfers []*Transfer
}

// step is a possible action on a queue pair.
type step struct {
	q *qp
	action
}

type action uint8

const (
	begin  action = iota // start a request, or flush requests that will not start
	land                 // move the bytes of the delayed read
	finish               // complete the oldest request, whose transfer is done
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

// stop stops the idle engine and waits until its goroutine has ended.
func (e *engine) stop() {
	close(e.quit)
	<-e.stopped
}

// notify makes the engine check q for steps. It is safe for concurrent use.
func (e *engine) notify(q *qp) {
	if q.notified.Swap(true) {
		return
	}
	e.mu.Lock()
	e.notified = append(e.notified, q)
	e.mu.Unlock()
	e.wake()
}

// wake wakes the engine.
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
		// A notification after this store wakes the engine. The second step finds work of an
		// earlier notification.
		e.idle.Store(true)
		if e.step() {
			e.idle.Store(false)
			continue
		}
		var timeout <-chan time.Time
		if d, ok := e.nextDue(); ok {
			timer.Reset(d)
			timeout = timer.C
		}
		select {
		case <-e.wakeup:
		case <-timeout:
		case <-e.quit:
			return
		}
		e.idle.Store(false)
	}
}

// step takes one step and reports whether there was one.
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

// takeNotified moves the notified queue pairs to active.
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

// findSteps collects the possible steps. It removes queue pairs without steps from active; a
// notification adds them again.
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

// options adds the possible steps of q. It reports whether q has steps now or will have some
// without a notification.
func (e *engine) options(q *qp) bool {
	r := &q.run
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.inflight) > 0 && r.inflight[0].moved.Load() {
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

// hasPosted reports whether q has requests to flush. The caller holds q.run.mu.
func (q *qp) hasPosted() bool {
	return q.run.retired < q.tail.Load() || q.srq == nil && q.rq.canFlush()
}

// readsFull reports whether q's next request is a read that exceeds the limit of concurrent reads.
// With a limit of zero it returns false, and the read starts and fails. The caller holds q.run.mu.
func (q *qp) readsFull() bool {
	l := q.link.Load()
	return l != nil && l.attr.MaxRDAtomic > 0 && q.run.reads >= int(l.attr.MaxRDAtomic) && q.next().opcode == rdma.WRRDMARead
}

// next returns the oldest request that has not started.
func (q *qp) next() *sendWQE { return &q.sq[q.run.issued&q.mask] }

// do executes a step and reports whether it had an effect.
func (e *engine) do(s step) bool {
	q := s.q
	if e.rng == nil { // move q behind the others
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
		delayed := q.run.delayedRead
		q.run.delayedRead = nil
		q.run.mu.Unlock()
		e.prov.o.Mover.Move(delayed)
		return true
	case begin:
	}
	return e.begin(q)
}

// begin starts the next request of q, or flushes requests that will not start. It reports whether
// it did so. It calls the Mover without q.run.mu because the call may block.
func (e *engine) begin(q *qp) bool {
	r := &q.run
	r.mu.Lock()
	if q.currentState() == rdma.QPSErr {
		defer r.mu.Unlock()
		// The queue pair may have failed since the step was chosen. Wait for its transfers.
		return len(r.inflight) == 0 && e.flush(q)
	}
	// The queue pair may have been reset meanwhile.
	if q.currentState() != rdma.QPSRTS || r.halted || r.issued == q.tail.Load() {
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

// inOrder returns the transfers to move after t, the last one in r, was started: a delayed read
// that must move before t, and t itself. Either may be nil. With a schedule, the bytes of a read
// may arrive late: later requests start before that unless they have SendFence, and use the old
// local memory. The read itself does not return bytes of their writes, and reads arrive in order.
func (e *engine) inOrder(r *running, t *Transfer) (before, now *Transfer) {
	w := &t.qp.sq[t.pos&t.qp.mask]
	if delayed := r.delayedRead; delayed != nil && (t.read || w.flags&rdma.SendFence != 0 || overlaps(t.Batch.Dst, delayed.Batch.Src)) {
		before, r.delayedRead = delayed, nil
	}
	switch {
	case len(t.Batch.Dst) == 0:
		t.moved.Store(true)
		return before, nil
	case e.rng != nil && t.read && e.rng.IntN(2) == 1:
		r.delayedRead = t
		return before, nil
	}
	return before, t
}

// nextDue returns the time until the first delayed attempt of a queue pair is due, and false if
// there is none.
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
