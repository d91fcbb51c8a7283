package sim

import (
	"math/rand/v2"
	"sync"
	"time"

	"github.com/kvlane/kvlane/internal/fault"
)

// scheduler runs the operations of a device one at a time. stop does nothing on a nil scheduler.
type scheduler struct {
	dev     *Device
	wake    chan struct{} // capacity 1
	stopped chan struct{}

	mu  sync.Mutex // held while an operation runs
	rng *rand.Rand
	can []*Queue // scratch memory of step
}

func newScheduler(d *Device, o Interleave) *scheduler {
	s := &scheduler{
		dev: d, wake: make(chan struct{}, 1), stopped: make(chan struct{}),
		rng: rand.New(rand.NewPCG(o.Seed, 0x73696d)),
	}
	if o.Manual {
		close(s.stopped)
	} else {
		go s.loop()
	}
	return s
}

// loop calls step until no operation can run. If every queue is blocked by a word or a stall, whose
// ends send no notification, loop checks again after a pause. If all queues are empty, it waits for
// work.
func (s *scheduler) loop() {
	defer close(s.stopped)
	t := time.NewTimer(pollFirst)
	defer t.Stop()
	for pause := pollFirst; ; {
		ran, blocked := s.step()
		if ran {
			pause = pollFirst
			continue
		}
		var timer <-chan time.Time
		if blocked {
			t.Reset(pause)
			timer = t.C
			pause = min(2*pause, pollMost)
		}
		select {
		case <-timer:
		case <-s.wake:
		case <-s.dev.dead:
			return
		}
	}
}

// stop waits until no operation is running. The device is closed.
func (s *scheduler) stop() {
	if s == nil {
		return
	}
	<-s.stopped
	s.mu.Lock() // a Step may be running
	defer s.mu.Unlock()
}

// step runs one operation if one can run. Otherwise it reports whether an operation is blocked.
func (s *scheduler) step() (ran, blocked bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.dev.dead:
		return false, false
	default:
	}
	s.can = s.can[:0]
	for _, q := range s.dev.openQueues() {
		switch work, ready := q.peek(); {
		case ready:
			s.can = append(s.can, q)
		case work:
			blocked = true
		}
	}
	if len(s.can) == 0 {
		return false, blocked
	}
	q := s.can[s.rng.IntN(len(s.can))]
	if o := new(op); q.pop(o) {
		q.run(o)
	}
	return true, false
}

// peek reports whether the queue has work, and whether its first operation can run without waiting.
func (q *Queue) peek() (work, ready bool) {
	q.mu.Lock()
	if q.head == len(q.ops) {
		q.mu.Unlock()
		return false, false
	}
	if q.err != nil {
		q.mu.Unlock()
		return true, true
	}
	q.decide(&q.ops[q.head])
	o := q.ops[q.head]
	q.mu.Unlock()
	switch o.kind {
	case opWait:
		return true, isClosed(o.event.done)
	case opGate:
		ok, err := q.wordReached(&o)
		return true, ok || err != nil
	case opCopy, opBatch, opFill, opLaunch, opRecord, opStore, opFile:
	}
	return true, !o.hit || o.fault.Action != fault.Stall || isClosed(o.fault.Released())
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// Step runs one operation of one queue on the caller's goroutine, and reports whether there was
// one. It does nothing on devices without Options.Interleave.
func (d *Device) Step() bool {
	if d.sched == nil {
		return false
	}
	ran, _ := d.sched.step()
	return ran
}

// StepAll calls Step until nothing can run, and returns the number of operations.
func (d *Device) StepAll() int {
	n := 0
	for d.Step() {
		n++
	}
	return n
}
