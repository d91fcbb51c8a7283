package breaker

import (
	"cmp"
	"fmt"
	"sync"
	"time"

	"github.com/jonboulle/clockwork"

	"github.com/kvlane/kvlane/errdefs"
)

// State is the state of a Breaker.
type State uint8

// The states.
const (
	Closed   State = iota // calls are permitted
	Open                  // calls are refused
	HalfOpen              // probes are permitted, other calls are refused
)

// String returns the name of the state in errors and metrics.
func (s State) String() string {
	switch s {
	case Closed:
		return "closed"
	case Open:
		return "open"
	case HalfOpen:
		return "half-open"
	}
	return fmt.Sprintf("state(%d)", uint8(s))
}

// Options are the options of a Breaker. Zero values are the defaults.
type Options struct {
	// Failures is the number of consecutive failures that open the breaker. Default 3.
	Failures int
	// Delay is the time for which the breaker first opens. Each failed recovery doubles it, up to
	// MaxDelay. Defaults 100 ms and 10 s.
	Delay, MaxDelay time.Duration
	// Probes is the number of probes that must succeed to close the breaker, and the maximum number
	// of probes in progress. Default 1.
	Probes int
	// Clock measures the delays. Default: the system clock.
	Clock clockwork.Clock
}

// Stats are the statistics of a Breaker.
type Stats struct {
	State    State
	Opened   int64 // number of times that it opened, including after a failed probe
	Refused  int64 // refused calls
	Probes   int64 // calls permitted while half-open
	Failures int64 // calls that failed
}

// Breaker permits or refuses calls to a peer. Use it to stop calling a peer that fails.
type Breaker struct {
	o Options

	mu       sync.Mutex
	stats    Stats
	epoch    uint64    // incremented by every change of state
	failures int       // consecutive failures, while closed
	until    time.Time // end of the delay, while open
	delay    time.Duration
	cause    error // error of the failure that opened it
	probing  int   // number of probes in progress, while half-open
	passed   int   // number of successful probes, while half-open
}

// OpenError is returned for a refused call. It wraps errdefs.ErrBusy and the cause.
type OpenError struct {
	Until time.Time // time of the next probe; zero: probes are in progress
	Cause error     // the failure that opened the breaker
}

// Error returns the cause.
func (e *OpenError) Error() string {
	return fmt.Sprintf("the peer failed and is not called: %v", e.Cause)
}

// Unwrap returns errdefs.ErrBusy and the cause.
func (e *OpenError) Unwrap() []error { return []error{errdefs.ErrBusy, e.Cause} }

// Permit is a permitted call. The caller must call exactly one of its methods when the call has
// ended.
type Permit struct {
	b     *Breaker
	epoch uint64
}

// New returns a closed breaker. It returns ErrInvalid for negative options.
func New(o Options) (*Breaker, error) {
	if o.Failures < 0 || o.Delay < 0 || o.MaxDelay < 0 || o.Probes < 0 {
		return nil, fmt.Errorf("make breaker of %+v: negative options: %w", o, errdefs.ErrInvalid)
	}
	o.Failures, o.Probes = cmp.Or(o.Failures, 3), cmp.Or(o.Probes, 1)
	o.Delay = cmp.Or(o.Delay, 100*time.Millisecond)
	o.MaxDelay = max(cmp.Or(o.MaxDelay, 10*time.Second), o.Delay)
	if o.Clock == nil {
		o.Clock = clockwork.NewRealClock()
	}
	return &Breaker{o: o, delay: o.Delay}, nil
}

// Allow permits a call, or returns an *OpenError. It does not block and does not allocate for
// permitted calls.
func (b *Breaker) Allow() (Permit, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.expire()
	switch b.stats.State {
	case Open:
		b.stats.Refused++
		return Permit{}, &OpenError{Until: b.until, Cause: b.cause}
	case HalfOpen:
		if b.probing+b.passed >= b.o.Probes {
			b.stats.Refused++
			return Permit{}, &OpenError{Cause: b.cause}
		}
		b.probing++
		b.stats.Probes++
	case Closed:
	}
	return Permit{b, b.epoch}, nil
}

// State returns the current state.
func (b *Breaker) State() State {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.expire()
	return b.stats.State
}

// Until returns the end of the delay while the breaker is open, and otherwise the zero time.
func (b *Breaker) Until() time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.expire(); b.stats.State != Open {
		return time.Time{}
	}
	return b.until
}

// Stats returns the statistics.
func (b *Breaker) Stats() Stats {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.expire()
	return b.stats
}

// expire changes an open breaker to half-open after its delay. The caller holds mu.
func (b *Breaker) expire() {
	if b.stats.State == Open && !b.o.Clock.Now().Before(b.until) {
		b.change(HalfOpen)
	}
}

// change sets the state. The caller holds mu.
func (b *Breaker) change(s State) {
	b.stats.State = s
	b.epoch++
	b.failures, b.probing, b.passed = 0, 0, 0
}

// Succeed ends a successful call.
func (p Permit) Succeed() {
	b := p.b
	b.mu.Lock()
	defer b.mu.Unlock()
	if p.epoch != b.epoch {
		return
	}
	b.failures = 0
	if b.stats.State != HalfOpen {
		return
	}
	b.probing--
	if b.passed++; b.passed == b.o.Probes {
		b.delay, b.cause = b.o.Delay, nil
		b.change(Closed)
	}
}

// Fail ends a call that failed because of the peer.
func (p Permit) Fail(cause error) { p.fail(cause, 1) }

// Open ends a call that failed because the peer cannot be called at all, for example because
// nothing listens at its address. It opens the breaker after this one failure.
func (p Permit) Open(cause error) { p.fail(cause, p.b.o.Failures) }

// fail ends a call that failed and counts as n consecutive failures.
func (p Permit) fail(cause error, n int) {
	b := p.b
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stats.Failures++
	if p.epoch != b.epoch {
		return
	}
	if b.stats.State == Closed {
		if b.failures += n; b.failures < b.o.Failures {
			return
		}
	} else {
		b.delay = min(2*b.delay, b.o.MaxDelay)
	}
	b.cause, b.until = cause, b.o.Clock.Now().Add(b.delay)
	b.stats.Opened++
	b.change(Open)
}

// Cancel ends a call whose result gives no information about the peer, for example a canceled call.
// If the call was a probe, another probe is permitted.
func (p Permit) Cancel() {
	b := p.b
	b.mu.Lock()
	defer b.mu.Unlock()
	if p.epoch == b.epoch && b.stats.State == HalfOpen {
		b.probing--
	}
}
