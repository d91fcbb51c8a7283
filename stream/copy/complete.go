package copy

import (
	"context"
	"fmt"
	"time"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/stream"
)

// pollBytes is how large a batch may be for whoever waits for it to poll the device: 512 KiB take 10 us over PCIe 5, and
// up to 40 in small pieces. Waiting for more, a goroutine's wake-up counts for little.
const pollBytes = 512 << 10

// unattended is how long a batch may be left to a Ticket.Wait that does not come: the device may need somebody, as a
// resident kernel that left just before it saw the batch.
const unattended = 200 * time.Microsecond

// Completing is whoever holds Stream.turn: the completer goroutine, or a goroutine in Ticket.Wait that found the turn
// free. He takes items off inflight in order, and waits or asks for their events.

// completeLoop is the completer. It sleeps until there is something that nobody may be polling for, and then completes
// until nothing is in flight.
func (s *Stream) completeLoop(ctx context.Context) {
	for {
		select {
		case <-s.watch:
		case <-ctx.Done():
			return
		}
		s.awake.Store(true)
		s.turn.Lock()
		s.complete(true)
		s.turn.Unlock()
		s.awake.Store(false)
	}
}

// lookLater is what the timer does that push sets. Whoever finds it set has pushed before this looks.
func (s *Stream) lookLater() {
	s.armed.Store(false)
	s.look()
}

// look wakes the completer.
func (s *Stream) look() {
	select {
	case s.watch <- struct{}{}:
	default:
	}
}

// push hands an item to who completes. A small batch on an idle stream, issued
// by Submit itself, is left to Ticket.Wait for a while: waking the completer takes longer than Wait takes to come. The caller
// holds the mutex.
func (s *Stream) push(it item) {
	o := it.op
	o.Fly()
	s.inflight.push(it)
	if it.apart {
		s.apart++
		s.apartBy = o.path
	}
	if alone := s.inflight.n == 1 && it.last && !it.lost; !alone || !o.small() || o.watched.Load() {
		s.look()
	} else if s.armed.CompareAndSwap(false, true) {
		s.later.Reset(unattended)
	}
}

// Watch implements stream.Driver. push looks at watched after the item is in, and the completer at the items after it
// was woken, so one of them sees the other.
func (o *op) Watch() {
	if !o.watched.Load() {
		o.watched.Store(true)
		o.stream.look()
	}
}

// Poll implements stream.Driver.
func (o *op) Poll() bool {
	s := o.stream
	if !s.turn.TryLock() {
		return !s.awake.Load() // another one polls, for a moment only; the completer may be long
	}
	left := s.complete(false)
	s.turn.Unlock()
	return left && o.small()
}

// small reports whether polling for the batch is worthwhile.
func (o *op) small() bool { return o.stats.bytes <= pollBytes }

// complete takes items in flight whose events are done, in order, and settles. If wait is false it stops at the first that
// is not done, and reports whether polling for that is worthwhile. The caller has the turn.
func (s *Stream) complete(wait bool) (left bool) {
	s.mu.Lock()
	it, ok := s.inflight.peek()
	s.mu.Unlock()
	for ok {
		if wait && it.last {
			s.expect(&it)
		}
		over, quiet, err := it.poll(wait)
		if !over {
			return it.op.small()
		}
		switch {
		case !quiet:
			it.op.Lose()
		case err == nil:
			s.collect(&it)
		}
		if err != nil {
			it.op.Fail(it.op.failure(err), false)
		}
		it, ok = s.giveBack(&it)
		s.life.Settle()
	}
	return false
}

// expect tells the event of a batch's last step when the planner predicted it. The caller has the turn.
func (s *Stream) expect(it *item) {
	e, ok := it.event.(device.ExpectedEvent)
	o := it.op
	if !ok || o.choice.Predicted == 0 {
		return
	}
	e.Expect(s.from(o, time.Duration(s.finished.Load())).Add(o.choice.Predicted))
}

// poll asks whether the step is done, or waits for it. quiet is false where the device cannot say that it has stopped.
// Waiting has no deadline: whoever waits for the ticket has one, the memory does not.
func (it *item) poll(wait bool) (over, quiet bool, err error) {
	if it.lost {
		return true, false, nil // the batch has the error
	}
	if over, quiet, err = ask(it.event, wait); over {
		it.event.Close()
	}
	return over, quiet, err
}

// ask asks whether e is done, or waits for it.
func ask(e device.Event, wait bool) (over, quiet bool, err error) {
	if !wait {
		quiet, err = e.Done()
		return quiet || err != nil, quiet, err
	}
	if err = e.Wait(context.Background()); err == nil {
		return true, true, nil
	}
	quiet, _ = e.Done()
	return true, quiet, err
}

// giveBack takes it off and frees what the step held. The ring is given back even by a step that failed: a broken stream
// writes no more descriptors. It returns the next in flight, if there is one.
func (s *Stream) giveBack(it *item) (next item, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inflight.pop()
	it.op.Land()
	if it.apart {
		s.apart--
	}
	s.calls -= it.calls
	if s.ring != nil {
		s.ring.giveBack(it.ringEnd)
	}
	if it.stageEnd > 0 {
		s.staging.giveBack(it.stageEnd)
	}
	return s.inflight.peek()
}

// Finish implements ordered.Work.
func (o *op) Finish(err error) (stream.Completion, error) {
	c := stream.Completion{
		Path: o.path, Reason: o.reason, GivenUp: o.lost, Started: o.Started, Finished: o.stream.opts.Clock.Now(),
	}
	if o.Started.IsZero() {
		c.Path, c.Reason, c.Started = stream.PathNone, ReasonUnstarted, c.Finished
	}
	if err == nil {
		c.Bytes, c.Pieces = o.stats.bytes, o.stats.pieces
	}
	o.stream.account(o, &c, err)
	// The ticket may be kept for long, and leads here as its driver: let the batch go.
	o.at = cursor{}
	o.carried.Store(nil)
	return c, err
}

// failure wraps what the device said about o.
func (o *op) failure(cause error) error {
	return fmt.Errorf("batch %d by %s: %w", o.ID(), o.path, cause)
}

// fifo holds the items in flight, in order. At most as many as slots and maxCalls admit.
type fifo struct {
	items []item // a ring
	first int
	n     int
}

func (f *fifo) push(it item) {
	if f.n == len(f.items) {
		more := make([]item, max(2*f.n, 16))
		copy(more[copy(more, f.items[f.first:]):], f.items[:f.first])
		f.items, f.first = more, 0
	}
	f.items[(f.first+f.n)%len(f.items)] = it
	f.n++
}

// peek returns the first item, which stays. ok is false where there is none.
func (f *fifo) peek() (it item, ok bool) {
	if f.n == 0 {
		return item{}, false
	}
	return f.items[f.first], true
}

func (f *fifo) pop() {
	f.items[f.first] = item{}
	f.first = (f.first + 1) % len(f.items)
	f.n--
}
