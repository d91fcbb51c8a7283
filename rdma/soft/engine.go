package soft

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/rdma"
)

// running is the engine's part of a queue pair.
type running struct {
	mu       sync.Mutex // held by the engine while it is at this queue pair, and by a reset
	issued   uint64     // requests that have started
	retired  uint64     // requests that have completed
	halted   bool       // one that has started will fail: no more start
	listed   bool       // in engine.active
	round    uint64     // of chooser
	late     *Transfer  // a read that chooser keeps back
	peer     *qp        // whom the queue pair reaches, found out when peerLink was its link
	peerLink *link
	ownLink  *link
	inside   uint64       // engine.fillings while both queue pairs are inside of engine.filling
	went     uint8        // what has started in it: a bit for each rdma.WROpcode
	tries    int          // in vain, of the request that comes next
	due      time.Time    // when to try again; zero: now
	hit      *fault.Fault // what goes wrong with the request that comes next
	// received counts messages of the peer, whose engine changes it while it is inside the gate.
	received uint32
}

// reset is called with mu held.
func (r *running) reset() {
	r.issued, r.retired, r.halted = 0, 0, false
	r.peer, r.peerLink, r.ownLink, r.late = nil, nil, nil, nil
	r.inside, r.went = 0, 0
	r.tries, r.due, r.hit = 0, time.Time{}, nil
	r.received = 0
}

// engine executes the requests of queue pairs.
type engine struct {
	prov    *Provider
	number  int           // of those that the provider ever had
	wake    chan struct{} // has one place
	quit    chan struct{}
	stopped chan struct{}
	idle    atomic.Bool // somebody has to wake it
	chooser *chooser    // with Options.Schedule

	mu    sync.Mutex
	rings []*qp // what has something to do, since the engine looked

	// The rest belongs to whoever runs steps.
	taken    []*qp // rings, taken over
	active   []*qp // queue pairs with requests to start, or to flush
	filling  *Transfer
	fillings uint64      // number of filling, among all there were
	inflight []*Transfer // in order
	spare    []*Transfer
	near     nearby
	plan     plan
	known    known
}

// plan is what one request needs, before it is put into a transfer.
type plan struct {
	dst, src []mem.Extent
	bytes    int64
	local    []mem.Extent
	scatter  []mem.Extent
	holds    []hold
	entered  int // of holds
	uses     []use
}

// hold is a gate that the request's transfer must be inside of; entered says that it is, by the request itself.
type hold struct {
	gate    *gate
	entered bool
}

func newEngine(p *Provider) *engine {
	e := &engine{prov: p, number: int(p.engines.Add(1) - 1), wake: make(chan struct{}, 1), quit: make(chan struct{}), stopped: make(chan struct{}), near: newNearby(), fillings: 1}
	go e.loop()
	return e
}

// stop ends the engine, which has nothing to do any more, and waits for it.
func (e *engine) stop() {
	close(e.quit)
	<-e.stopped
}

// ring tells the engine that q has something to do. Cheap, and safe for concurrent use.
func (e *engine) ring(q *qp) {
	if q.rung.Swap(true) {
		return
	}
	e.mu.Lock()
	e.rings = append(e.rings, q)
	e.mu.Unlock()
	e.kick()
}

// kick wakes the engine.
func (e *engine) kick() {
	if !e.idle.Load() {
		return
	}
	select {
	case e.wake <- struct{}{}:
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
		// Whoever rings after idle is set wakes the engine; what was rung before, the second look finds.
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
		case <-e.wake:
		case <-alarm:
		case <-e.quit:
			return
		}
		e.idle.Store(false)
	}
}

// step does what there is to do and reports whether there was anything.
func (e *engine) step() bool {
	if e.chooser != nil {
		return e.chooser.step(e)
	}
	e.listen()
	worked := e.reap()
	return e.issue() || worked
}

// listen takes over what was rung.
func (e *engine) listen() {
	e.mu.Lock()
	e.taken, e.rings = e.rings, e.taken[:0]
	e.mu.Unlock()
	for i, q := range e.taken {
		q.rung.Store(false)
		q.run.mu.Lock()
		e.list(q)
		q.run.mu.Unlock()
		e.taken[i] = nil
	}
}

// list puts q among those to look at. The caller holds q.run.mu.
func (e *engine) list(q *qp) {
	if !q.run.listed {
		q.run.listed = true
		e.active = append(e.active, q)
	}
}

// quantum is how many requests of one queue pair start before the others have their turn.
const quantum = 256

// turn is what is left to do for a queue pair after a visit.
type turn uint8

const (
	resting turn = iota // nothing, until somebody rings
	waiting             // something, at running.due
	busy                // something, now
)

// busyTransfers is how many transfers keep a mover busy. While it has as many, the next one waits for more requests: a mover
// does a few long ones faster than many short ones.
const busyTransfers = 3

// issue starts requests, of each queue pair in turn, and hands over the transfer that they make when it is full, or when
// nothing more can join it and the mover has little else to do.
func (e *engine) issue() bool {
	worked, more, kept := false, false, 0
	for i := 0; i < len(e.active); i++ {
		q := e.active[i]
		did, next := e.visit(q, quantum)
		worked = worked || did
		more = more || next == busy
		if next != resting {
			e.active[kept] = q
			kept++
		}
	}
	clear(e.active[kept:])
	e.active = e.active[:kept]
	if !more && !e.moverIsBusy() {
		e.launch()
	}
	return worked
}

// moverIsBusy reports whether transfers are under way whose end will wake the engine, and enough of them.
func (e *engine) moverIsBusy() bool {
	n := len(e.inflight) - busyTransfers
	return n >= 0 && !e.inflight[n].landed.Load()
}

// visit starts up to most requests of q, or flushes those that will not start, and reports whether it did anything.
func (e *engine) visit(q *qp, most int) (worked bool, next turn) {
	r := &q.run
	r.mu.Lock()
	defer r.mu.Unlock()
	switch q.at() {
	case rdma.QPSErr:
		r.due = time.Time{}
		if r.retired == r.issued {
			worked = e.flush(q)
		}
	case rdma.QPSRTS:
		if r.halted {
			break
		}
		if !r.due.IsZero() && time.Now().Before(r.due) {
			return false, waiting
		}
		r.due = time.Time{}
		tail := q.tail.Load()
		reached := e.reaches(q)
		for n := 0; r.issued < tail; n++ {
			if n == most {
				return true, busy
			}
			w := &q.sq[r.issued&q.mask]
			if reached && e.startAsBefore(q, w) {
				worked = true
				r.issued++
				continue
			}
			if !e.start(q, w) {
				if !r.due.IsZero() {
					return n > 0, waiting
				}
				break
			}
			worked = true
			r.issued++
			if r.halted {
				break
			}
		}
	default:
	}
	r.listed = false
	return worked, resting
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

// transfer returns the transfer that is being filled.
func (e *engine) transfer() *Transfer {
	if e.filling == nil {
		if n := len(e.spare); n > 0 {
			e.filling, e.spare = e.spare[n-1], e.spare[:n-1]
		} else {
			e.filling = &Transfer{engine: e}
		}
	}
	return e.filling
}

// launch hands the transfer that is being filled to the mover.
func (e *engine) launch() {
	t := e.filling
	if t == nil {
		return
	}
	e.filling = nil
	e.fillings++
	e.near.forget()
	e.inflight = append(e.inflight, t)
	t.seal()
	switch {
	case t.pieces == 0:
		t.landed.Store(true)
	case e.chooser != nil && e.chooser.keepsBack(t):
	default:
		e.prov.o.Mover.Move(t)
	}
}

// reap completes the requests of transfers that have landed, in order.
func (e *engine) reap() bool {
	n := 0
	for n < len(e.inflight) && e.inflight[n].landed.Load() {
		e.finish(e.inflight[n])
		n++
	}
	if n == 0 {
		return false
	}
	m := copy(e.inflight, e.inflight[n:])
	clear(e.inflight[m:])
	e.inflight = e.inflight[:m]
	return true
}

// recycle gives back a transfer whose requests have completed.
func (e *engine) recycle(t *Transfer) {
	for _, g := range t.held {
		g.inside.CompareAndSwap(t, nil) // t will be filled again, and is outside then
		g.leave()
	}
	t.clear()
	e.spare = append(e.spare, t)
}
