package cluster

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/breaker"
	"github.com/kvlane/kvlane/rpc"
)

// call is a call in progress.
type call struct {
	c          *Client
	request    *rpc.Request
	key        string
	idempotent bool
	uses       atomic.Int64 // the caller and the attempts in goroutines
	executed   atomic.Int64 // attempts that the server may have executed

	tried    []*server // since the last pause
	attempts int
}

// done ends a use. After the last one the request is released.
func (q *call) done() {
	if q.uses.Add(-1) == 0 {
		q.request.Release()
	}
}

// attempt is a request to one server.
type attempt struct {
	s      *server
	permit breaker.Permit // unless forced
	forced bool           // the server is ejected for overload, like all others
	probe  bool           // decides on the trial of the server
	lost   bool           // the backup request has answered; guarded by Client.mu
}

// outcome is the result of an attempt.
type outcome struct {
	a        *attempt
	response rpc.Response
	answered bool  // there is a response, perhaps with an error
	err      error // of the response or of the attempt; nil for success
	verdict
}

// verdict is the meaning of an outcome.
type verdict struct {
	retry bool // the call may be repeated
	free  bool // repeating it adds no load, so that the budget does not count it

	health      health
	unreachable bool
	overloaded  bool
}

// health is the meaning of an outcome for the server.
type health uint8

const (
	unknown health = iota // nothing is known
	healthy               // the server answers
	failing               // it fails, perhaps only this call
	gone                  // it cannot be called now
)

// judge returns the meaning of an outcome.
func judge(o *outcome, idempotent bool) verdict {
	unsent := errors.Is(o.err, rpc.ErrNotSent)
	switch code := rpc.CodeOf(o.err); {
	case o.answered && o.response.Executed():
		return verdict{health: healthy}
	case (o.answered || unsent) && code == rpc.LogOff:
		return verdict{retry: true, free: true, health: gone}
	case o.answered && (code == rpc.LimitReached || code == rpc.Overcrowded):
		return verdict{retry: true, health: failing, overloaded: true}
	case o.answered:
		return verdict{health: healthy}
	case errors.Is(o.err, errdefs.ErrClosed): // by Close
		return verdict{}
	case code == rpc.Canceled && o.a.lost:
		return verdict{health: failing}
	case code == rpc.TimedOut, code == rpc.BadResponse:
		return verdict{health: failing}
	case unsent && code == rpc.FailedSocket:
		return verdict{retry: true, free: true, health: gone, unreachable: true}
	case unsent && code == rpc.Overcrowded:
		return verdict{retry: true, free: true, health: failing, overloaded: true}
	case unsent && code == rpc.EndOfFile:
		return verdict{retry: true, free: true, health: failing}
	case code == rpc.FailedSocket, code == rpc.EndOfFile, code == rpc.Overcrowded:
		return verdict{retry: idempotent, health: failing}
	}
	return verdict{} // cancelled by the caller, or the request cannot be sent
}

// run makes attempts until one ends the call.
func (q *call) run(ctx context.Context) (rpc.Response, error) {
	c := q.c
	c.mu.Lock()
	c.tokens = min(c.tokens+c.o.RetryShare, retryBurst)
	c.mu.Unlock()
	var last *outcome
	for {
		a, err := q.next(ctx, last)
		if a == nil {
			return q.end(last, err)
		}
		if last != nil {
			last.release()
		}
		var o outcome
		if c.o.BackupAfter > 0 && q.idempotent {
			o = q.race(ctx, a)
		} else {
			o = q.send(ctx, a)
		}
		last = &o
	}
}

// next begins an attempt, unless the last one has ended the call. It returns an error if no server
// can be called.
func (q *call) next(ctx context.Context, last *outcome) (*attempt, error) {
	if last == nil {
		if ctx.Err() != nil {
			return nil, ended(ctx)
		}
		return q.begin(nil)
	}
	if !last.retry || ctx.Err() != nil || q.attempts >= q.c.o.MaxAttempts && !last.unreachable {
		return nil, nil
	}
	a, err := q.begin(last)
	if a != nil || q.attempts >= q.c.o.MaxAttempts || errors.Is(err, errBudget) || !q.mayReturn() {
		return a, err
	}
	// Each server that accepts calls was tried. Try again after a pause.
	pause := min(retryDelay<<min(q.attempts, 10), maxRetryDelay)
	pause = time.Duration(float64(pause) * (0.5 + rand.Float64()))
	if end, ok := ctx.Deadline(); ok && time.Until(end) < pause {
		return nil, err
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		return nil, err
	}
	q.tried = nil
	return q.begin(last)
}

// ended returns the error of a call whose context has ended before the first attempt.
func ended(ctx context.Context) *rpc.Error {
	code := rpc.Canceled
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		code = rpc.TimedOut
	}
	return &rpc.Error{Code: code, Text: "the call has ended before its first attempt", Cause: fmt.Errorf("%w: %w", rpc.ErrNotSent, context.Cause(ctx))}
}

// mayReturn reports whether a server that was tried could be tried again.
func (q *call) mayReturn() bool {
	q.c.mu.Lock()
	defer q.c.mu.Unlock()
	return slices.ContainsFunc(q.tried, func(s *server) bool { return !s.removed && (s.accepts() || s.overloaded) })
}

// errBudget is the reason why a call is not repeated.
var errBudget = errors.New("the budget of repeated requests is used up")

// begin chooses a server that was not tried, and begins an attempt there. last is the outcome that
// leads to it: nil for the first attempt of a call.
func (q *call) begin(last *outcome) (*attempt, error) {
	c := q.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, &rpc.Error{Code: rpc.FailedSocket, Text: "the client is closed", Cause: fmt.Errorf("%w: %w", rpc.ErrNotSent, errdefs.ErrClosed)}
	}
	a := q.choose()
	if a == nil {
		return nil, c.unavailable()
	}
	if last != nil {
		if !last.free && !c.spend() {
			q.abandon(a)
			return nil, errBudget
		}
		c.stats.Retries++
	}
	q.use(a)
	return a, nil
}

// backup begins a backup request, or returns nil if there is no other server or no budget.
func (q *call) backup() *attempt {
	c := q.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil
	}
	a := q.choose()
	if a == nil || a.forced { // more requests would not help an overloaded server
		return nil
	}
	if !c.spend() {
		q.abandon(a)
		return nil
	}
	c.stats.Backups++
	q.use(a)
	return a
}

// spend takes a request from the budget. The caller holds mu.
func (c *Client) spend() bool {
	if c.tokens < 1 {
		c.stats.Refused++
		return false
	}
	c.tokens--
	return true
}

// choose returns an attempt at a server that was not tried. If all others are ejected or were tried,
// those that are ejected for overload are used, because a pause of all servers would waste their
// time. The caller holds mu.
func (q *call) choose() *attempt {
	c := q.c
	c.start++
	untried := func(s *server) bool { return !slices.Contains(q.tried, s) }
	for {
		s := choose(c.o.Policy, c.servers, func(s *server) bool { return s.accepts() && untried(s) }, q.key, c.start)
		if s == nil {
			break
		}
		permit, err := s.breaker.Allow()
		if err == nil {
			a := &attempt{s: s, permit: permit, probe: s.state == onTrial}
			s.probing = s.probing || a.probe
			return a
		}
		s.eject(err) // the breaker and the state differ
	}
	s := choose(c.o.Policy, c.servers, func(s *server) bool { return s.overloaded && s.state == ejected && untried(s) }, q.key, c.start)
	if s != nil {
		return &attempt{s: s, forced: true}
	}
	return nil
}

// use counts an attempt. The caller holds mu.
func (q *call) use(a *attempt) {
	q.tried = append(q.tried, a.s)
	q.attempts++
	a.s.inFlight++
	q.c.group.Add(1)
}

// abandon ends an attempt that is not made. The caller holds mu.
func (q *call) abandon(a *attempt) {
	if !a.forced {
		a.permit.Cancel()
	}
	if a.probe {
		a.s.probing = false
	}
}

// send makes an attempt.
func (q *call) send(ctx context.Context, a *attempt) outcome {
	o := outcome{a: a}
	q.executed.Add(1)
	o.response, o.err = a.s.client.Do(ctx, q.request)
	if o.answered = o.err == nil; o.answered {
		o.err = o.response.Err()
	}
	q.c.finish(&o, q.idempotent)
	if errors.Is(o.err, rpc.ErrNotSent) || o.answered && o.retry {
		q.executed.Add(-1)
	}
	return o
}

// race makes an attempt and, if it takes too long, a second one at another server. The other one is
// cancelled after the first response.
func (q *call) race(ctx context.Context, first *attempt) outcome {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	results, decided := make(chan outcome), make(chan struct{})
	defer close(decided)
	running := 0
	launch := func(a *attempt) {
		running++
		q.uses.Add(1)
		q.c.group.Go(func() {
			defer q.done()
			o := q.send(ctx, a)
			select {
			case results <- o:
			case <-decided:
				o.release()
			}
		})
	}
	launch(first)
	timer := time.NewTimer(q.c.o.BackupAfter)
	defer timer.Stop()
	var second *attempt
	for {
		select {
		case o := <-results:
			if running--; o.retry && running > 0 {
				o.release()
				continue // the other attempt may succeed
			}
			q.c.decide(&o, first, second)
			return o
		case <-timer.C:
			if second = q.backup(); second != nil {
				launch(second)
			}
		}
	}
}

// release drops the response, if there is one.
func (o *outcome) release() {
	if o.answered {
		o.response.Release()
	}
}

// decide counts a backup request that has answered first.
func (c *Client) decide(o *outcome, first, second *attempt) {
	if second != nil && o.a == second && o.health == healthy {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.stats.BackupWins++
		first.lost = true
	}
}

// finish ends an attempt and applies its outcome to the server.
func (c *Client) finish(o *outcome, idempotent bool) {
	s, a := o.a.s, o.a
	c.mu.Lock()
	o.verdict = judge(o, idempotent)
	s.inFlight--
	s.stats.Attempts++
	if o.health >= failing {
		s.stats.Failures++
	}
	if !a.forced {
		s.apply(o)
	}
	unused := s.removed && s.inFlight == 0
	if unused {
		delete(c.leaving, s)
	}
	c.mu.Unlock()
	if unused {
		s.close()
	}
	c.group.Done()
}

// apply ends the permit of an attempt and follows the breaker. The caller holds mu.
func (s *server) apply(o *outcome) {
	cause := o.err
	if o.a.lost {
		cause = errors.New("it did not answer before a backup request")
	}
	switch o.health {
	case healthy:
		o.a.permit.Succeed()
	case failing:
		o.a.permit.Fail(cause)
	case gone:
		o.a.permit.Open(cause)
	case unknown:
		o.a.permit.Cancel()
	}
	switch state := s.breaker.State(); {
	case state == breaker.Closed:
		s.recovered()
	case s.state == usable, o.a.probe && state == breaker.Open:
		s.unreachable, s.overloaded = o.unreachable, o.overloaded
		s.eject(cause)
	case o.a.probe:
		s.probing = false
	}
}

// end returns the result of a call: the last outcome, or why there is none.
func (q *call) end(last *outcome, err error) (rpc.Response, error) {
	c := q.c
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stats.Calls++
	if last != nil && last.answered {
		if last.err != nil {
			c.stats.Failed++
		}
		return last.response, nil
	}
	c.stats.Failed++
	var e *rpc.Error // all errors are an *rpc.Error, except errBudget
	if unavailable := errors.As(err, &e); last != nil && (!unavailable || !last.unreachable) && errors.As(last.err, &e) {
		e = &rpc.Error{Code: e.Code, Text: fmt.Sprintf("server %s, attempt %d: %s", last.a.s.member.Name, q.attempts, e.Text), Cause: e.Cause}
	}
	e.Cause = q.cause(e.Cause)
	return rpc.Response{}, e
}

// cause returns the cause of the error of a call, which is ErrNotSent only if no server can have
// executed the call.
func (q *call) cause(err error) error {
	if q.executed.Load() > 0 && errors.Is(err, rpc.ErrNotSent) {
		return sentError{err}
	}
	return err
}

// sentError is an error that is not ErrNotSent.
type sentError struct{ error }

func (e sentError) Is(target error) bool {
	return target != rpc.ErrNotSent && errors.Is(e.error, target)
}
