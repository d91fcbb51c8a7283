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
	word  *word // owned by the signal until set
	base  uint64
	steps int

	mu      sync.Mutex
	reached int
	set     bool
	err     error
}

// Block makes later work of the program on st wait until that step, counted from 1, is reached. It
// does nothing if the step is already reached. While device.StreamAdopter.WaitLimit streams are
// waiting it returns ErrBusy, and st does not wait. It returns ErrClosed once the pool is closed,
// ErrInvalid for a step out of range, and otherwise errors of device.HostStream. After such an
// error the stream may wait nevertheless, and continues when Set is called.
func (s *Signal) Block(st device.HostStream, step int) error {
	if step <= 0 || step > s.steps {
		return fmt.Errorf("block stream: step %d of %d: %w", step, s.steps, errdefs.ErrInvalid)
	}
	if known, _ := s.Verdict(step); known {
		return nil
	}
	w, err := s.pool.waitsOf(st)
	if err != nil {
		return fmt.Errorf("block stream: %w", err)
	}
	defer s.pool.endBlock(w)
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.enqueue(st, s, step); err != nil {
		return fmt.Errorf("block stream: %w", err)
	}
	return nil
}

// enqueue enqueues on the stream a report that the stream has reached its wait, the wait, and an
// event after it. Failed operations may still have been enqueued, so the event follows them too. If
// recording the event fails, enqueue tries once more.
func (w *streamWaits) enqueue(st device.HostStream, s *Signal, step int) error {
	err := st.WriteValue(s.word.wanted, s.base+uint64(step))
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

// Advance reports that this many steps of the load, from the first, have arrived and are verified.
// A number that is not higher than before has no effect, nor has a call after Set. It does not
// block.
func (s *Signal) Advance(steps int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if steps = min(steps, s.steps); s.set || steps <= s.reached {
		return
	}
	s.reached = steps
	s.store(steps)
}

// Set ends the signal. err is the reason why the remaining steps have not arrived, or nil if all
// have. All streams that wait for the signal continue. Only the first call has an effect. It does
// not block.
func (s *Signal) Set(err error) {
	if s.end(err) {
		s.pool.recycle(s)
	}
}

// end implements Set and reports whether this is the first call.
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

// store releases the streams that wait for up to this number of steps. The caller holds mu, so
// Verdict already returns their result.
func (s *Signal) store(steps int) {
	hostmem.StoreUint64(s.word.at.Bytes(), s.base+uint64(steps))
}

// Wanted returns the step for which a stream is waiting, according to the latest report of a
// stream. That stream has completed its work enqueued before the wait. Zero means that there is no
// such report. It does not block.
func (s *Signal) Wanted() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.set { // the word belongs to another signal
		return 0
	}
	n := hostmem.LoadUint64(s.word.wanted.Bytes()) - s.base
	if n > uint64(s.steps) { // a late stream has reached a wait for an earlier signal
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
