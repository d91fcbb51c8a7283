package copy

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/stream"
	"github.com/kvlane/kvlane/stream/copy/describe"
	"github.com/kvlane/kvlane/stream/copy/move"
)

// pollBytes is how large a batch may be for whoever waits for it to poll the device: 8 MiB take 170 us over PCIe 5. Waiting for more, a
// goroutine's wake-up counts for little.
const pollBytes = 8 << 20

// unattended is how long a batch may be left to a Ticket.Wait that does not come.
const unattended = 200 * time.Microsecond

// unseen is how long nobody may have looked at a batch that has ended meanwhile, and what it took be believed: small ones take 5 to 40 us.
const unseen = 40 * time.Microsecond

// Whoever completes holds Stream.completing: the completer goroutine, or a goroutine in Ticket.Wait that found it free. It takes
// items off flight in order, and waits or asks for their events.

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
		s.completing.Lock()
		s.complete(true)
		s.completing.Unlock()
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

// push hands an item to who completes. A small batch on an idle stream, issued by Submit itself, is left to Ticket.Wait for a
// while: waking the completer takes longer than Wait takes to come.
func (s *Stream) push(it *item) {
	o := it.op
	o.Fly()
	if only := s.flight.push(it); !only || !it.last || it.Lost || !o.small() || o.watched.Load() {
		s.look()
	} else {
		o.left.Store(int64(s.now()))
		if s.armed.CompareAndSwap(false, true) {
			s.later.Reset(unattended)
		}
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
	if !s.completing.TryLock() {
		return !s.awake.Load() // another one polls, for a moment only; the completer may be long
	}
	left := s.complete(false)
	s.completing.Unlock()
	return left && o.small()
}

// small reports whether polling for the batch is worthwhile.
func (o *op) small() bool { return o.work.Bytes <= pollBytes }

// complete takes items in flight whose events are done, in order, and settles. If wait is false it stops at the first that
// is not done, and reports whether polling for that is worthwhile. The caller holds completing.
func (s *Stream) complete(wait bool) (left bool) {
	for it := s.flight.peek(); it != nil; {
		if wait && it.last {
			s.expect(it)
		}
		over, quiet, err := it.poll(wait)
		if !over {
			it.op.left.Store(0)
			return it.op.small()
		}
		switch {
		case !quiet:
			it.op.Lose()
		case err == nil:
			it.Collect()
			it.op.Tell(it.groups)
		}
		if err != nil || !quiet {
			it.op.told = math.MaxInt // what comes after a failure counts for nothing
		}
		if err != nil {
			it.fail(err)
		}
		it.GiveBack()
		o := it.op
		it = s.flight.pop()
		o.Land()
		s.life.Settle()
	}
	return false
}

// Tell implements move.Teller: it tells who wants to know that the first so many page groups of the batch have landed. The caller holds completing.
func (o *op) Tell(groups int) {
	if groups > o.told {
		if o.live() != nil {
			o.told = math.MaxInt // Finish says so
			return
		}
		o.told = groups
		o.work.At.Batch.Paged.Landed(groups, o.work.At.Summed)
	}
}

// expect tells the event of a batch's last step when the planner predicted it. The caller holds completing.
func (s *Stream) expect(it *item) {
	e, ok := it.Event.(device.ExpectedEvent)
	o := it.op
	if !ok || o.choice.Predicted == 0 {
		return
	}
	e.Expect(s.from(o, time.Duration(s.finished.Load())).Add(o.choice.Predicted))
}

// poll asks whether the step is done, or waits for it. quiet is false where the device cannot say that it has stopped.
// Waiting has no deadline: whoever waits for the ticket has one, the memory does not.
func (it *item) poll(wait bool) (over, quiet bool, err error) {
	if it.Lost {
		return true, false, nil // the batch has the error
	}
	if over, quiet, err = ask(it.Event, wait); over {
		it.Event.Close()
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

// Finish implements ordered.Work.
func (o *op) Finish(err error) (stream.Completion, error) {
	if err == nil {
		err = o.live()
	}
	c := stream.Completion{
		Path: o.choice.Path, Reason: o.choice.Reason, GivenUp: o.lost, Started: o.Started, Finished: o.stream.opts.Clock.Now(),
	}
	if o.Started.IsZero() {
		c.Path, c.Reason, c.Started = stream.PathNone, ReasonUnstarted, c.Finished
	}
	if err == nil {
		c.Bytes, c.Pieces = o.work.Bytes, o.work.Pieces
	}
	o.stream.account(o, &c, err)
	// The ticket may be kept for long, and leads here as its driver: let the batch go.
	o.work.At = describe.Cursor{}
	o.carried.Store(nil)
	o.origins.Release()
	return c, err
}

// fail notes why the device or the NICs failed the step. That NICs were cancelled, as was asked for, ends the batch and is no
// failure of the stream.
func (it *item) fail(err error) {
	o := it.op
	if _, ok := it.Event.(move.Carried); ok {
		if o.Canceled() && errors.Is(err, errdefs.ErrCanceled) && !errors.Is(err, errdefs.ErrBroken) {
			o.End(o.failure(err))
			return
		}
		o.stream.opts.NIC.fail(err)
	}
	o.Fail(o.failure(err), false)
}

// failure wraps what the device said about o.
func (o *op) failure(cause error) error {
	return fmt.Errorf("batch %d by %s: %w", o.ID(), o.choice.Path, cause)
}
