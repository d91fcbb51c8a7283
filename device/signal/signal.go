package signal

import (
	"errors"
	"fmt"
	"sync"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/sys/hostmem"
)

// wordBytes is the size of a word that a stream waits for.
const wordBytes = 8

// Signal counts the steps of a load. A stream that waits for a step continues when that step is
// reached, or when Set is called.
type Signal struct {
	pool  *Pool
	word  *word // the signal's until it is set
	base  uint64
	steps int

	mu      sync.Mutex
	reached int
	set     bool
	err     error
}

// Block makes later work of the program on st wait until that step is reached, counted from 1. It
// does nothing if the step is already reached. It returns ErrBusy, without a wait, while as many
// streams wait as device.StreamAdopter.WaitLimit allows. It returns ErrClosed once the pool is
// closed, ErrInvalid for a step out of range, and otherwise errors of device.HostStream. After such
// an error the stream may wait nevertheless, and continues when Set is called.
func (s *Signal) Block(st device.HostStream, step int) error {
	if step <= 0 || step > s.steps {
		return fmt.Errorf("hold stream: step %d of %d: %w", step, s.steps, errdefs.ErrInvalid)
	}
	if known, _ := s.Verdict(step); known {
		return nil
	}
	w, err := s.pool.passage(st)
	if err != nil {
		return fmt.Errorf("hold stream: %w", err)
	}
	defer s.pool.endBlock(w)
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.enqueue(st, s, step); err != nil {
		return fmt.Errorf("hold stream: %w", err)
	}
	return nil
}

// enqueue enqueues on the stream a report that it has reached its wait, the wait, and an event
// after it. Failed operations may still have been enqueued, so the event follows them too. If
// recording the event fails, enqueue tries once more.
func (w *passage) enqueue(st device.HostStream, s *Signal, step int) error {
	err := st.WriteValue(s.word.come, s.base+uint64(step))
	if errors.Is(err, errdefs.ErrNotSupported) || errors.Is(err, errdefs.ErrInvalid) {
		return err // nothing was enqueued
	}
	if err == nil {
		err = st.WaitValue(s.word.at, s.base+uint64(step))
	}
	e, failed := st.Record()
	if failed != nil {
		if e, failed = st.Record(); failed != nil {
			w.lost = failed
			return errors.Join(err, failed)
		}
	}
	if w.last != nil {
		w.last.Close()
	}
	w.last, w.lost = e, nil // it follows all earlier waits
	return err
}

// Advance reports that the first steps, of that number, have arrived and are verified. A smaller
// number than before has no effect, nor has any call after Set. It does not block.
func (s *Signal) Advance(steps int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if steps = min(steps, s.steps); s.set || steps <= s.reached {
		return
	}
	s.reached = steps
	s.store(steps)
}

// Set ends the signal. err is the reason why the remaining steps did not arrive, or nil if all did.
// All streams that wait for the signal continue. Only the first call has an effect. It does not
// block.
func (s *Signal) Set(err error) {
	if s.end(err) {
		s.pool.recycle(s)
	}
}

// end reports whether it was the first call.
func (s *Signal) end(err error) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.set {
		return false
	}
	s.set, s.err = true, err
	if err == nil {
		s.reached = s.steps
	}
	s.store(s.steps)
	return true
}

// store releases the streams that wait for that number of steps. The caller holds mu, so Verdict
// already reports them.
func (s *Signal) store(steps int) {
	hostmem.StoreUint64(s.word.at.Bytes(), s.base+uint64(steps))
}

// Wanted returns the step that a stream has reached a wait for, as last reported by a stream. That
// stream has completed its work enqueued before the wait. Zero means that no such step is known. It
// does not block.
func (s *Signal) Wanted() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.set { // the word belongs to another signal
		return 0
	}
	n := hostmem.LoadUint64(s.word.come.Bytes()) - s.base
	if n > uint64(s.steps) { // a stream was late to reach a wait for an earlier signal
		return 0
	}
	return int(n)
}

// Verdict reports whether streams that wait for that step continue. err is the reason why the bytes
// of the step must not be used, or nil if the step was reached. Once a stream has passed its wait,
// known is true. It does not block.
func (s *Signal) Verdict(step int) (known bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case step <= s.reached:
		return true, nil
	case s.set:
		return true, s.err
	}
	return false, nil
}
