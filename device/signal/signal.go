package signal

import (
	"errors"
	"fmt"
	"sync"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/sys/hostmem"
)

// wordBytes is the size of what a stream waits for.
const wordBytes = 8

// Signal counts the steps of a load. Streams that wait for one of them go on when it was reached, or when the signal is set.
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

// Hold makes what the program enqueues on st from now on wait until so many steps are reached, from 1 on. What was reached
// already is not waited for. ErrBusy, before the stream waits, while as many wait as device.StreamAdopter.WaitLimit allows. After
// another error the stream may wait all the same, and goes on when the signal is set. ErrClosed
// once the pool is closed; ErrInvalid for a step that there is not; else what device.HostStream says.
func (s *Signal) Hold(st device.HostStream, step int) error {
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
	defer s.pool.leave(w)
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.tell(st, s, step); err != nil {
		return fmt.Errorf("hold stream: %w", err)
	}
	return nil
}

// tell makes the stream say that it has come to its wait, and wait, and records the event that says when it has waited. As the record may be
// what failed, it gets a second chance. What failed may still have been enqueued, so it is followed by an event too.
func (w *passage) tell(st device.HostStream, s *Signal, step int) error {
	err := st.WriteValue(s.word.come, s.base+uint64(step))
	if errors.Is(err, errdefs.ErrNotSupported) || errors.Is(err, errdefs.ErrInvalid) {
		return err // before anything was enqueued
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
	w.last, w.lost = e, nil // it comes after all before
	return err
}

// Advance says that the first so many steps have come and are verified. Fewer than before change nothing, and after Set
// nothing does. It does not block.
func (s *Signal) Advance(steps int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if steps = min(steps, s.steps); s.set || steps <= s.reached {
		return
	}
	s.reached = steps
	s.store(steps)
}

// Set ends the signal: err is why the steps that were not reached did not come, or nil where all have. All streams that wait
// for it go on. The first call counts. It does not block.
func (s *Signal) Set(err error) {
	if s.end(err) {
		s.pool.giveBack(s)
	}
}

// end reports whether it was the first.
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

// store lets streams go on that wait for so many steps. The verdict on them is there already for those that lock s.
func (s *Signal) store(steps int) {
	hostmem.StoreUint64(s.word.at.Bytes(), s.base+uint64(steps))
}

// Wanted returns how many steps a stream has come to wait for, as the last that came to a wait says: it has done what was enqueued before
// that. Zero: none that is known. It does not block.
func (s *Signal) Wanted() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.set { // the word is another's
		return 0
	}
	n := hostmem.LoadUint64(s.word.come.Bytes()) - s.base
	if n > uint64(s.steps) { // a stream that has come late to a wait for a signal before
		return 0
	}
	return int(n)
}

// Verdict reports whether streams that wait for so many steps go on, and why what these bring must not be used, or nil: it was
// reached. Once a stream has passed its wait, known is true. It does not block.
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
