package breaker_test

import (
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/jonboulle/clockwork"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/breaker"
	"github.com/kvlane/kvlane/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

var errPeer = errors.New("the peer does not answer")

func open(t *testing.T, o breaker.Options) (*breaker.Breaker, *clockwork.FakeClock) {
	t.Helper()
	clock := clockwork.NewFakeClock()
	o.Clock = clock
	b, err := breaker.New(o)
	if err != nil {
		t.Fatal(err)
	}
	return b, clock
}

func allow(t *testing.T, b *breaker.Breaker) breaker.Permit {
	t.Helper()
	p, err := b.Allow()
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func refused(t *testing.T, b *breaker.Breaker) *breaker.OpenError {
	t.Helper()
	_, err := b.Allow()
	var e *breaker.OpenError
	if !errors.As(err, &e) || !errors.Is(err, errdefs.ErrBusy) || !errors.Is(err, errPeer) {
		t.Fatalf("a call was answered %v", err)
	}
	return e
}

func TestOpensAfterFailuresInARow(t *testing.T) {
	b, clock := open(t, breaker.Options{})
	for range 10 { // never three in a row
		allow(t, b).Fail(errPeer)
		allow(t, b).Fail(errPeer)
		allow(t, b).Succeed()
	}
	allow(t, b).Fail(errPeer)
	allow(t, b).Fail(errPeer)
	allow(t, b).Cancel() // has no result
	if s := b.State(); s != breaker.Closed {
		t.Fatalf("after two failures it is %s", s)
	}
	allow(t, b).Fail(errPeer)
	if e := refused(t, b); !e.Until.Equal(clock.Now().Add(100 * time.Millisecond)) {
		t.Errorf("open until %v at %v", e.Until, clock.Now())
	}
	if s := b.Stats(); s != (breaker.Stats{State: breaker.Open, Opened: 1, Refused: 1, Failures: 23}) {
		t.Errorf("stats %+v", s)
	}
}

// TestOpen opens the breaker after one failure, and doubles the delay as a failed probe does.
func TestOpen(t *testing.T) {
	b, clock := open(t, breaker.Options{Failures: 5, Delay: time.Second})
	early := allow(t, b)
	if u := b.Until(); !u.IsZero() {
		t.Errorf("closed until %v", u)
	}
	allow(t, b).Open(errPeer)
	early.Open(errPeer) // has no effect on the state that followed
	for _, delay := range []time.Duration{time.Second, 2 * time.Second} {
		if u := b.Until(); b.State() != breaker.Open || !u.Equal(clock.Now().Add(delay)) {
			t.Fatalf("%s until %v at %v", b.State(), u, clock.Now())
		}
		clock.Advance(delay)
		if u := b.Until(); !u.IsZero() {
			t.Errorf("half-open until %v", u)
		}
		allow(t, b).Open(errPeer)
	}
}

// TestRecovery follows the delays of failed probes, until one succeeds.
func TestRecovery(t *testing.T) {
	b, clock := open(t, breaker.Options{Failures: 1, Delay: time.Second, MaxDelay: 5 * time.Second})
	allow(t, b).Fail(errPeer)
	for _, delay := range []time.Duration{1, 2, 4, 5, 5} {
		clock.Advance(delay*time.Second - 1)
		_ = refused(t, b)
		clock.Advance(1)
		if s := b.State(); s != breaker.HalfOpen {
			t.Fatalf("after %d s it is %s", delay, s)
		}
		probe := allow(t, b)
		if e := refused(t, b); !e.Until.IsZero() {
			t.Errorf("during the probe: open until %v", e.Until)
		}
		probe.Fail(errPeer)
	}
	clock.Advance(5 * time.Second)
	allow(t, b).Cancel()
	allow(t, b).Succeed() // replaces the canceled one
	if s := b.State(); s != breaker.Closed {
		t.Fatalf("after a probe it is %s", s)
	}
	allow(t, b).Fail(errPeer)
	clock.Advance(time.Second) // the initial delay again
	if s := b.State(); s != breaker.HalfOpen {
		t.Errorf("a second failure opened it for longer: %s", s)
	}
}

func TestProbes(t *testing.T) {
	b, clock := open(t, breaker.Options{Failures: 1, Probes: 3})
	allow(t, b).Fail(errPeer)
	clock.Advance(time.Second)
	one, two, three := allow(t, b), allow(t, b), allow(t, b)
	_ = refused(t, b)
	one.Succeed()
	_ = refused(t, b) // no fourth call is permitted
	two.Cancel()
	two = allow(t, b)
	two.Succeed()
	if s := b.State(); s != breaker.HalfOpen {
		t.Fatalf("after two probes of three it is %s", s)
	}
	three.Succeed()
	if s := b.Stats(); s.State != breaker.Closed || s.Probes != 4 {
		t.Errorf("after three probes: %+v", s)
	}
}

// TestResultsOfEarlierStates checks that the result of a call counts only in the state in which it
// was permitted.
func TestResultsOfEarlierStates(t *testing.T) {
	b, clock := open(t, breaker.Options{Failures: 1})
	late, later, last, canceled := allow(t, b), allow(t, b), allow(t, b), allow(t, b)
	allow(t, b).Fail(errPeer)
	late.Fail(errPeer)
	later.Succeed()
	_ = refused(t, b)
	clock.Advance(100 * time.Millisecond)
	probe := allow(t, b)
	canceled.Cancel()
	_ = refused(t, b) // the probe is still in progress
	last.Succeed()
	if s := b.State(); s != breaker.HalfOpen {
		t.Errorf("a call from before it opened made it %s", s)
	}
	probe.Succeed()
	if s := b.Stats(); s.State != breaker.Closed || s.Opened != 1 || s.Failures != 2 {
		t.Errorf("stats %+v", s)
	}
}

func TestRefusesOptions(t *testing.T) {
	for _, o := range []breaker.Options{{Failures: -1}, {Delay: -1}, {MaxDelay: -1}, {Probes: -1}} {
		if _, err := breaker.New(o); !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("%+v: %v", o, err)
		}
	}
}

// TestConcurrently checks that the number of concurrent probes is limited, and that a peer that
// works again is called again.
func TestConcurrently(t *testing.T) {
	b, err := breaker.New(breaker.Options{Delay: time.Microsecond, MaxDelay: time.Millisecond, Probes: 2})
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			random := rand.New(rand.NewPCG(1, uint64(i)))
			for range 2000 {
				p, err := b.Allow()
				if err != nil {
					continue
				}
				switch random.IntN(4) {
				case 0:
					p.Succeed()
				case 1:
					p.Cancel()
				default:
					p.Fail(errPeer)
				}
			}
		})
	}
	wg.Wait()
	for end := time.Now().Add(testkit.Patience()); b.State() != breaker.Closed; {
		if p, err := b.Allow(); err == nil {
			p.Succeed()
		}
		if time.Now().After(end) {
			t.Fatalf("the breaker does not recover: %+v", b.Stats())
		}
	}
}

func TestPermittedCallsAllocateNothing(t *testing.T) {
	b, _ := open(t, breaker.Options{})
	if n := testing.AllocsPerRun(100, func() { allow(t, b).Succeed() }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
