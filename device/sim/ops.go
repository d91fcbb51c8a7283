package sim

import (
	"fmt"
	"slices"
	"time"

	"github.com/kvlane/kvlane/device/internal/kernel"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/fault"
)

type opKind uint8

const (
	opCopy opKind = iota + 1
	opBatch
	opFill
	opLaunch
	opRecord
	opWait
	opGate
	opStore
	opFile
)

// op is one enqueued operation.
type op struct {
	kind   opKind
	value  byte            // of opFill
	one    [1]kernel.Piece // of opCopy, opFill, opGate and opStore
	pieces []kernel.Piece  // of opBatch
	kernel *kernel.Kernel  // of opLaunch
	args   kernel.Args     // of opLaunch
	ctas   int             // of opLaunch
	word   uint64          // of opGate: value to wait for; of opStore: value to write
	event  *Event          // of opRecord and opWait
	file   *fileWork       // of opFile
	at     time.Time       // time at which it was enqueued, in model time
	// fault is chosen when the operation is at the head of the queue.
	decided, hit bool
	fault        fault.Fault
}

// call counts a call that will enqueue work, and returns its injected fault.
func (q *Queue) call(name, native string) error {
	if f, hit := q.dev.o.Faults.Hit(name); hit {
		return errInjected(native, &f)
	}
	return nil
}

// enqueue adds o. It fails if the queue or the device is closed, or if the queue is broken and o is
// work.
func (q *Queue) enqueue(o op) error {
	o.at = q.dev.link.now()
	q.mu.Lock()
	if q.closed {
		q.mu.Unlock()
		return fmt.Errorf("the queue is closed: %w", errdefs.ErrClosed)
	}
	if q.err != nil && o.kind != opRecord {
		q.reported = true
		err := q.err
		q.mu.Unlock()
		return fmt.Errorf("%w: %w", errdefs.ErrBroken, err)
	}
	q.push(o)
	q.mu.Unlock()
	q.dev.notify(q)
	return nil
}

// push appends o. The caller holds mu.
func (q *Queue) push(o op) {
	if q.head > 64 && q.head > len(q.ops)/2 {
		n := copy(q.ops, q.ops[q.head:])
		clear(q.ops[n:])
		q.ops, q.head = q.ops[:n], 0
	}
	q.ops = append(q.ops, o)
}

// pop moves the oldest operation to o, and reports whether there was an operation.
func (q *Queue) pop(o *op) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.head == len(q.ops) {
		q.ops, q.head = q.ops[:0], 0
		return false
	}
	*o, q.ops[q.head] = q.ops[q.head], op{}
	q.head++
	return true
}

// borrow returns an empty list with space for n pieces.
func (q *Queue) borrow(n int) []kernel.Piece {
	q.mu.Lock()
	defer q.mu.Unlock()
	if last := len(q.freeLists) - 1; last >= 0 {
		l := q.freeLists[last]
		q.freeLists = q.freeLists[:last]
		return slices.Grow(l, n)
	}
	return make([]kernel.Piece, 0, n)
}

func (q *Queue) giveBack(l []kernel.Piece) {
	const keep = 16
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.freeLists) < keep {
		q.freeLists = append(q.freeLists, l[:0])
	}
}

// failure returns the sticky error.
func (q *Queue) failure() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.err
}

// markReported records that the queue's failure was returned to a caller.
func (q *Queue) markReported() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.reported = true
}

// fail breaks the queue unless it is already broken.
func (q *Queue) fail(what string, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.err == nil {
		q.err = fmt.Errorf("%s on %s: %w", what, q, err)
	}
}
