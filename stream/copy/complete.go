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

// pollBytes is the size of the largest batch for which a waiting goroutine polls. 8 MiB take 170 us
// over PCIe 5; with larger batches the time to wake a goroutine matters little.
const pollBytes = 8 << 20

// handOff is the time after which the completer takes over a batch from Ticket.Wait.
const handOff = 200 * time.Microsecond

// maxUnseen is the longest time without a poll after which the duration of a small batch is still
// reported to the planner. Small batches take 5 to 40 us.
const maxUnseen = 40 * time.Microsecond

// Steps are completed under Stream.completing, by the completer goroutine or by a goroutine in
// Ticket.Wait that finds the lock free. They are removed from inFlight in order.

// completeLoop runs the completer. It sleeps until it is woken, and then completes steps until
// nothing is in flight. It returns when ctx ends.
func (s *Stream) completeLoop(ctx context.Context) {
	for {
		select {
		case <-s.wake:
		case <-ctx.Done():
			return
		}
		s.completerActive.Store(true)
		s.completing.Lock()
		s.complete(true)
		s.completing.Unlock()
		s.completerActive.Store(false)
	}
}

// handOffExpired runs a time of handOff after push. It clears handOffArmed before it wakes the
// completer, so that the completer sees the step of a push that found the timer armed.
func (s *Stream) handOffExpired() {
	s.handOffArmed.Store(false)
	s.wakeCompleter()
}

// wakeCompleter wakes the completer. It does not block.
func (s *Stream) wakeCompleter() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// push adds a step to the steps in flight. A small batch on an idle stream is left to Ticket.Wait
// for a time of handOff, because waking the completer takes longer than starting Wait.
func (s *Stream) push(it *item) {
	o := it.op
	o.AddInFlight()
	if only := s.inFlight.push(it); !only || !it.last || it.Lost || !o.small() || o.watched.Load() {
		s.wakeCompleter()
	} else {
		o.handOffAt.Store(int64(s.now()))
		if s.handOffArmed.CompareAndSwap(false, true) {
			s.handOffTimer.Reset(handOff)
		}
	}
}

// Watch implements stream.Driver. push reads watched after it has added the step, and the completer
// reads the steps after it was woken. Therefore at least one of them completes the step.
func (o *op) Watch() {
	if !o.watched.Load() {
		o.watched.Store(true)
		o.stream.wakeCompleter()
	}
}

// Poll implements stream.Driver.
func (o *op) Poll() bool {
	s := o.stream
	if !s.completing.TryLock() {
		return !s.completerActive.Load() // if active, the completer may hold the lock for long
	}
	left := s.complete(false)
	s.completing.Unlock()
	return left && o.small()
}

// small reports whether the batch is small enough to poll for it.
func (o *op) small() bool { return o.work.Bytes <= pollBytes }

// complete completes steps whose events are done, in order, and resolves their tickets. If wait is
// false, it stops at the first event that is not done and reports whether to continue polling. The
// caller holds completing.
func (s *Stream) complete(wait bool) (left bool) {
	for it := s.inFlight.peek(); it != nil; {
		if wait && it.last {
			s.expect(it)
		}
		over, quiet, err := it.poll(wait)
		if !over {
			it.op.handOffAt.Store(0)
			return it.op.small()
		}
		switch {
		case !quiet:
			it.op.Lose()
		case err == nil:
			it.Collect()
			it.op.Notify(it.groups)
		}
		if err != nil || !quiet {
			it.op.reportedGroups = math.MaxInt // no reports after a failure
		}
		if err != nil {
			it.fail(err)
		}
		it.GiveBack()
		o := it.op
		it = s.inFlight.pop()
		o.RemoveInFlight()
		s.life.ResolveCompleted()
	}
	return false
}

// Notify implements move.Notifier. It reports that the first groups page groups of the batch have
// completed, unless it has reported them before. The caller holds completing.
func (o *op) Notify(groups int) {
	if groups > o.reportedGroups {
		if o.live() != nil {
			o.reportedGroups = math.MaxInt // Finish returns the error
			return
		}
		o.reportedGroups = groups
		o.work.At.Batch.Paged.Completed(groups, o.work.At.Summed)
	}
}

// expect passes the predicted end of a batch to the event of its last step. The caller holds
// completing.
func (s *Stream) expect(it *item) {
	e, ok := it.Event.(device.ExpectedEvent)
	o := it.op
	if !ok || o.choice.Predicted == 0 {
		return
	}
	e.Expect(s.from(o, time.Duration(s.finished.Load())).Add(o.choice.Predicted))
}

// poll reports whether the step is over; if wait is set, it waits until then. quiet is false if the
// device may still access the memory. The wait has no deadline, because the memory stays in use.
func (it *item) poll(wait bool) (over, quiet bool, err error) {
	if it.Lost {
		return true, false, nil // the batch has already failed
	}
	if over, quiet, err = pollEvent(it.Event, wait); over {
		it.Event.Close()
	}
	return over, quiet, err
}

// pollEvent reports whether e is done or has failed; if wait is set, it waits until then.
func pollEvent(e device.Event, wait bool) (over, quiet bool, err error) {
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
		Path: o.choice.Path, Reason: o.choice.Reason, GivenUp: o.givenUp, Started: o.Started, Finished: o.stream.opts.Clock.Now(),
	}
	if o.Started.IsZero() {
		c.Path, c.Reason, c.Started = stream.PathNone, ReasonUnstarted, c.Finished
	}
	if err == nil {
		c.Bytes, c.Pieces = o.work.Bytes, o.work.Pieces
	}
	o.stream.account(o, &c, err)
	// The ticket references o as its driver and may be kept for long, so release the batch.
	o.work.At = describe.Cursor{}
	o.carried.Store(nil)
	o.origins.Release()
	return c, err
}

// fail records a failure of the device or the NICs. If a NIC has canceled the batch on request,
// only the batch ends, and the stream does not break.
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

// failure adds the batch and its path to an error.
func (o *op) failure(cause error) error {
	return fmt.Errorf("batch %d by %s: %w", o.ID(), o.choice.Path, cause)
}
