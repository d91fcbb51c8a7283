package remote

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvlane/kvlane/blockio"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/breaker"
	"github.com/kvlane/kvlane/internal/placement"
	"github.com/kvlane/kvlane/tier"
)

// server is a block server with its connection.
type server struct {
	address string
	client  *blockio.Client
	breaker *breaker.Breaker
	latency *breaker.Latency
	timeout time.Duration // of each request

	zone atomic.Pointer[string] // of the last hello, or of the list
	load placement.Load
	out  atomic.Int64 // last time that blocks passed to another server, in nanoseconds

	failures, timeouts atomic.Int64
	overrun            atomic.Int64 // longest, in nanoseconds

	mu        sync.Mutex
	last      error // of the last failure, or nil after a success
	figures   blockio.Stat
	releasing int             // leases that are being released
	released  []chan struct{} // closed when none is being released
}

// ServerStats has the figures of a server since the tier was opened.
type ServerStats struct {
	Address  string
	State    string        // of the breaker: closed, open or half-open
	Opened   int64         // number of times that the breaker opened
	Refused  int64         // requests that the breaker refused
	Probes   int64         // requests while the breaker was half-open
	Failures int64         // requests that failed because the server is slow or gone
	Timeouts int64         // Failures by a deadline
	Overrun  time.Duration // longest time from the deadline of a request to its end
	Err      error         // last failure; nil after a success
	Client   blockio.ClientStats
}

func (s *server) stats() ServerStats {
	b := s.breaker.Stats()
	s.mu.Lock()
	defer s.mu.Unlock()
	return ServerStats{
		Address: s.address, State: b.State.String(), Opened: b.Opened, Refused: b.Refused, Probes: b.Probes,
		Failures: s.failures.Load(), Timeouts: s.timeouts.Load(), Overrun: time.Duration(s.overrun.Load()), Err: s.last, Client: s.client.Stats(),
	}
}

// call makes a request that ends within timeout. It returns the error of the request, an error that
// wraps tier.ErrUnavailable if the server is slow or gone, or the cause of ctx.
func (s *server) call(ctx context.Context, timeout time.Duration, request func(ctx context.Context) error) error {
	permit, err := s.breaker.Allow()
	if err != nil {
		return fmt.Errorf("%w: %s: %v", tier.ErrUnavailable, s.address, err) //nolint:errorlint // its class is tier.ErrUnavailable
	}
	return s.request(ctx, timeout, &permit, request)
}

// callLeased makes a request for leased blocks. Unlike call, it also makes it if the server is left
// out because it is slow, until a request fails: the blocks would be errors of a load, not misses.
func (s *server) callLeased(ctx context.Context, timeout time.Duration, request func(ctx context.Context) error) error {
	permit, err := s.breaker.Allow()
	switch {
	case err == nil:
		return s.request(ctx, timeout, &permit, request)
	case s.slow(err):
		return s.request(ctx, timeout, nil, request)
	}
	return fmt.Errorf("%w: %s: %v", tier.ErrUnavailable, s.address, err) //nolint:errorlint // its class is tier.ErrUnavailable
}

// slow reports whether a refusal of the breaker is of a server that is slow, and no request has
// failed since.
func (s *server) slow(refusal error) bool {
	var slow *breaker.SlowError
	if !errors.As(refusal, &slow) {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last == nil || errors.As(s.last, &slow)
}

// request makes a request of call. Without a permit it is no probe, and does not change the
// breaker.
func (s *server) request(ctx context.Context, timeout time.Duration, permit *breaker.Permit, request func(ctx context.Context) error) error {
	s.load.Begin()
	start, took := time.Now(), time.Duration(0)
	defer func() { s.load.End(took, start.Add(took)) }()
	within, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	err := request(within)
	if end, _ := within.Deadline(); time.Since(end) > 0 {
		s.overran(time.Since(end))
	}
	switch {
	case err == nil || answered(err):
		took = time.Since(start)
		if permit == nil {
			return err
		}
		slow := s.latency.Observe(took)
		if slow != nil {
			permit.Open(slow)
		} else {
			permit.Succeed()
		}
		s.note(slow)
		return err
	case ctx.Err() != nil:
		if permit != nil {
			permit.Cancel()
		}
		return context.Cause(ctx)
	}
	if s.failures.Add(1); within.Err() != nil {
		s.timeouts.Add(1)
		err = fmt.Errorf("no answer within %v: %w", timeout, err)
	}
	if permit != nil {
		permit.Fail(err)
	}
	s.note(err)
	class := tier.ErrUnavailable
	if errors.Is(err, blockio.ErrRefused) {
		class = errRefused
	}
	return fmt.Errorf("%w: %s: %v", class, s.address, err) //nolint:errorlint // its class is tier.ErrUnavailable
}

// overran notes the time from the deadline of a request to its end.
func (s *server) overran(by time.Duration) {
	for {
		longest := s.overrun.Load()
		if int64(by) <= longest || s.overrun.CompareAndSwap(longest, int64(by)) {
			return
		}
	}
}

// errRefused is the error of requests to a server that refuses the connection.
var errRefused = fmt.Errorf("the server refuses this client: %w", tier.ErrUnavailable)

// score returns the score of the server for placement.View.Choose.
func (s *server) score(now time.Time) float64 {
	if s.breaker.State() != breaker.Closed {
		return math.Inf(1)
	}
	return s.load.Score(now)
}

// spillTime is the time for which other servers may have blocks of a server after its breaker
// closed.
const spillTime = 10 * time.Minute

// leftOut reports whether other servers get the blocks of this one, because its breaker refuses
// requests, and whether they may have some.
func (s *server) leftOut(now time.Time) (is, was bool) {
	if s.breaker.State() != breaker.Closed {
		s.out.Store(now.UnixNano())
		return true, true
	}
	return false, now.UnixNano()-s.out.Load() < int64(spillTime)
}

func (s *server) note(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last = err
}

// answered reports whether an error is the answer of a server that works.
func answered(err error) bool {
	if errors.Is(err, blockio.ErrRefused) {
		return false
	}
	for _, target := range []error{errdefs.ErrNotFound, errdefs.ErrExists, errdefs.ErrNoSpace, errdefs.ErrReadOnly, errdefs.ErrCorrupt, errdefs.ErrBusy} {
		if errors.Is(err, target) {
			return true
		}
	}
	return false
}

// stat updates the figures of the server.
func (s *server) stat(ctx context.Context, timeout time.Duration) error {
	return s.call(ctx, timeout, func(ctx context.Context) error {
		figures, err := s.client.Stat(ctx)
		if err == nil {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.figures = figures
		}
		return err
	})
}

// beginRelease and endRelease enclose the release of a lease at the server.
func (s *server) beginRelease() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.releasing++
}

func (s *server) endRelease() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.releasing--; s.releasing == 0 {
		for _, c := range s.released {
			close(c)
		}
		s.released = nil
	}
}

// waitReleases waits until no lease is being released, or until ctx ends.
func (s *server) waitReleases(ctx context.Context) {
	s.mu.Lock()
	if s.releasing == 0 {
		s.mu.Unlock()
		return
	}
	c := make(chan struct{})
	s.released = append(s.released, c)
	s.mu.Unlock()
	select {
	case <-c:
	case <-ctx.Done():
	}
}
