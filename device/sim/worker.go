package sim

import (
	"fmt"
	"time"

	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/internal/sys/hostmem"
)

// start starts the queue's goroutine, unless the device runs operations one at a time.
func (q *Queue) start() {
	if q.dev.sched != nil {
		close(q.stopped)
		return
	}
	go func() {
		defer close(q.stopped)
		var o op // reused: it is too large to allocate for each operation
		for {
			if q.pop(&o) {
				q.run(&o)
				continue
			}
			select {
			case <-q.wake:
			case <-q.quit:
				return
			}
		}
	}()
}

// stop ends the goroutine of an idle queue and waits for it.
func (q *Queue) stop() {
	close(q.quit)
	<-q.stopped
}

// abandon closes the queue of a closing device. Pending operations fail.
func (q *Queue) abandon() {
	q.fail("run", errClosed("simCtxDestroy"))
	q.mu.Lock()
	q.closed = true
	q.mu.Unlock()
	q.stop()
	for o := new(op); q.pop(o); {
		q.run(o)
	}
}

// notify wakes the goroutine that runs q's operations.
func (d *Device) notify(q *Queue) {
	wake := q.wake
	if d.sched != nil {
		wake = d.sched.wake
	}
	select {
	case wake <- struct{}{}:
	default:
	}
}

// run runs one operation. Only one goroutine at a time runs operations of a queue.
func (q *Queue) run(o *op) {
	x := &q.exec
	if o.at.After(x.at) {
		x.at = o.at
	}
	if o.kind == opRecord {
		o.event.resolve(q.failure(), x.at)
		return
	}
	if o.kind == opGate {
		defer q.dev.unpark()
	}
	if q.failure() == nil {
		q.decide(o)
		if err := q.do(o); err != nil {
			q.fail(o.name(), err)
		}
	}
	if o.kind == opBatch {
		q.giveBack(o.pieces)
	}
}

func (q *Queue) do(o *op) error {
	switch o.kind {
	case opWait:
		return q.await(o.event)
	case opGate:
		return q.awaitWord(o)
	case opStore:
		return q.storeWord(o)
	case opFile:
		return q.moveFile(o)
	case opCopy, opBatch, opFill, opLaunch, opRecord:
	}
	if o.hit {
		if err := q.dev.applyFault(o.name(), &o.fault); err != nil {
			return err
		}
	}
	if q.dev.link.on() {
		return q.paced(o)
	}
	return q.perform(o)
}

// perform moves the bytes, and counts them in executor.traffic.
func (q *Queue) perform(o *op) error {
	x := &q.exec
	x.lockMemory()
	defer x.release()
	x.traffic = traffic{}
	err := x.carryOut(o)
	for dir, n := range x.traffic {
		q.dev.traffic[dir].Add(n)
	}
	return err
}

// carryOut performs o and applies its fault.
func (x *executor) carryOut(o *op) error {
	partial := o.hit && o.fault.Action == fault.Partial
	var err error
	switch o.kind {
	case opCopy:
		if partial {
			o.one[0].N /= 2
		}
		err = x.copyPieces("simMemcpyAsync", o.one[:])
	case opBatch:
		pieces := o.pieces
		if partial {
			pieces = pieces[:len(pieces)/2]
		}
		err = x.copyPieces("simMemcpyBatchAsync", pieces)
	case opFill:
		if partial {
			o.one[0].N /= 2
		}
		err = x.fill(o.one[0], o.value)
	case opLaunch:
		if partial {
			o.args[o.kernel.Count] /= 2
		}
		x.machine.CTAs, x.machine.Silent = o.ctas, o.hit
		err = o.kernel.Run(&x.machine, &o.args)
	case opRecord, opWait, opGate, opStore, opFile:
	}
	if err == nil && o.hit && o.fault.Action == fault.Corrupt {
		err = x.corrupt(o)
	}
	if err == nil && o.hit && o.kind == opLaunch && o.kernel.Notify != nil {
		err = o.kernel.Notify(&x.machine, &o.args)
	}
	if err == nil && partial {
		err = errInjected(o.name(), &o.fault)
	}
	return err
}

// paced is perform in model time. The work starts after the latency. Copies and fills, whose length
// is known, write their bytes at their end; kernels write them as they run.
func (q *Queue) paced(o *op) error {
	x, l := &q.exec, &q.dev.link
	var t traffic
	dir := q.direction(o, &t)
	x.at = l.reserve(x.at, dir, l.latency)
	if o.kind != opLaunch {
		x.at = l.move(x.at, &t)
		if err := q.until(x.at); err != nil {
			return err
		}
		return q.perform(o)
	}
	if err := q.until(x.at); err != nil {
		return err
	}
	if err := q.perform(o); err != nil {
		return err
	}
	x.at = l.move(x.at, &x.traffic)
	return q.until(x.at)
}

// direction returns the part of the link that the operation uses first. It adds the bytes that are
// known in advance to t.
func (q *Queue) direction(o *op, t *traffic) direction {
	r := q.dev.space.lockMemory()
	defer r.unlock()
	first := inside
	pieces := o.pieces
	if o.kind == opCopy || o.kind == opFill {
		pieces = o.one[:]
	}
	for i, p := range pieces {
		dst, src := r.find(p.Dst), r.find(p.Src)
		if dst == nil {
			continue // perform returns the error
		}
		if src == nil { // o is a fill
			src = dst
		}
		dir := directionOf(dst.kind, src.kind)
		t[dir] += int64(p.N)
		if i == 0 {
			first = dir
		}
	}
	return first
}

func (q *Queue) until(at time.Time) error {
	if q.dev.sched == nil && !q.dev.sleep(at.Sub(q.dev.o.Clock.Now())) {
		return errClosed("simCtxDestroy")
	}
	return nil
}

// decide looks up the fault of o, once.
func (q *Queue) decide(o *op) {
	if o.decided {
		return
	}
	o.decided = true
	switch o.kind {
	case opCopy, opBatch, opFill, opLaunch:
		o.fault, o.hit = q.dev.findFault(o.work(), true)
	case opFile:
		o.fault, o.hit = q.dev.findFault(o.work(), false)
	case opRecord, opWait, opGate, opStore:
	}
}

// findFault returns the fault of the named operation. If moves is set, the operation moves bytes
// and also counts as OpWork.
func (d *Device) findFault(name string, moves bool) (fault.Fault, bool) {
	f, hit := d.o.Faults.Hit(name)
	if !hit && moves {
		f, hit = d.o.Faults.Hit(OpWork)
	}
	return f, hit
}

// applyFault applies the effect of a fault before the work, or instead of the work.
func (d *Device) applyFault(name string, f *fault.Fault) error {
	switch f.Action {
	case fault.Fail, fault.Crash:
		return errInjected(name, f)
	case fault.Stall:
		if f.Wait(d.life) != nil {
			return errClosed("simCtxDestroy")
		}
	case fault.Delay:
		if d.sched == nil && !d.sleep(f.Delay) {
			return errClosed("simCtxDestroy")
		}
	case fault.Partial, fault.Corrupt: // applied while the bytes are moved
	}
	return nil
}

func (q *Queue) await(e *Event) error {
	select {
	case <-e.done:
	case <-q.dev.dead:
		return errClosed("simCtxDestroy")
	}
	if e.at.After(q.exec.at) {
		q.exec.at = e.at
	}
	if err := e.verdict(); err != nil {
		return fmt.Errorf("the work of the event failed: %w", err)
	}
	return nil
}

const (
	pollFirst = 5 * time.Microsecond
	pollMost  = 500 * time.Microsecond
)

// awaitWord waits until the word is large enough. The CPU writes the word without a notification,
// so awaitWord polls it: in real time even with an injected clock, and less often the longer it
// takes.
func (q *Queue) awaitWord(o *op) error {
	t := time.NewTimer(pollFirst)
	defer t.Stop()
	for pause := pollFirst; ; pause = min(2*pause, pollMost) {
		if ok, err := q.wordReached(o); ok || err != nil {
			return err
		}
		t.Reset(pause)
		select {
		case <-t.C:
		case <-q.dev.dead:
			return errClosed("simCtxDestroy")
		}
	}
}

func (q *Queue) wordReached(o *op) (reached bool, err error) {
	err = q.onWord("simStreamWaitValue64", o, func(b []byte) { reached = int64(hostmem.LoadUint64(b)-o.word) >= 0 })
	return reached, err
}

func (q *Queue) storeWord(o *op) error {
	return q.onWord("simStreamWriteValue64", o, func(b []byte) { hostmem.StoreUint64(b, o.word) })
}

// onWord calls do with the word of o. The word cannot be freed during the call.
func (q *Queue) onWord(call string, o *op, do func(b []byte)) error {
	q.dev.space.mu.RLock()
	defer q.dev.space.mu.RUnlock()
	b, err := q.exec.machine.View(call, o.one[0].Dst, 8)
	if err == nil {
		do(b)
	}
	return err
}

// name returns the operation's name for errors.
func (o *op) name() string {
	switch o.kind {
	case opWait:
		return "wait for event"
	case opGate:
		return "wait for value"
	case opStore:
		return "write value"
	case opLaunch:
		return "run " + o.kernel.Name
	case opCopy, opBatch, opFill, opRecord, opFile:
	}
	return o.work()
}

// work returns the operation's name in fault plans.
func (o *op) work() string {
	switch o.kind {
	case opCopy:
		return OpCopy
	case opBatch:
		return OpBatch
	case opFill:
		return OpFill
	case opLaunch:
		return OpLaunch
	case opFile:
		return fileOp(o.file.dir)
	case opRecord, opWait, opGate, opStore:
	}
	return ""
}
