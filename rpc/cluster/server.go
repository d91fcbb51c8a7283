package cluster

import (
	"context"
	"errors"
	"time"

	"github.com/kvlane/kvlane/internal/breaker"
	"github.com/kvlane/kvlane/internal/rendezvous"
	"github.com/kvlane/kvlane/metadata"
	"github.com/kvlane/kvlane/rpc"
)

// state is the use of a server.
type state uint8

const (
	usable  state = iota
	ejected       // it gets no calls, and is checked in the background
	onTrial       // it was checked, and gets one call at a time until one succeeds
)

// server is a member of the list.
type server struct {
	c       *Client
	client  *rpc.Client
	breaker *breaker.Breaker // used under Client.mu
	ctx     context.Context  // ends when the server is removed
	cancel  context.CancelFunc
	wake    chan struct{} // capacity 1; a value when the server was ejected

	// All fields below are guarded by Client.mu.
	balance
	member      metadata.Member
	state       state
	probing     bool  // a call is in progress that decides on the trial
	unreachable bool  // ejected because it cannot be connected to
	overloaded  bool  // ejected because it refused calls
	cause       error // the last reason for ejecting it
	removed     bool
	stats       ServerStats
}

// newServer returns a server without its goroutine.
func (c *Client) newServer(m metadata.Member) (*server, error) {
	s := &server{c: c, member: m, wake: make(chan struct{}, 1)}
	s.weight, s.seed = float64(m.Weight), rendezvous.Seed(m.Name)
	var err error
	if s.client, err = rpc.NewClient(m.Address, c.o.Client); err != nil {
		return nil, err
	}
	if s.breaker, err = breaker.New(breaker.Options{Failures: c.o.Failures, Delay: c.o.MinEject, MaxDelay: c.o.MaxEject}); err != nil {
		return nil, err
	}
	s.ctx, s.cancel = context.WithCancel(c.ctx)
	return s, nil
}

// accepts reports whether the server can get a call. The caller holds mu.
func (s *server) accepts() bool { return s.state == usable || s.state == onTrial && !s.probing }

// close ends the goroutine and the connections of a server that is not used any more.
func (s *server) close() {
	s.cancel()
	_ = s.client.Close() // it returns nil
}

// eject takes the server out of use. The caller holds mu.
func (s *server) eject(cause error) {
	s.state, s.probing, s.cause = ejected, false, cause
	s.stats.Ejections++
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// run checks the server until it is removed.
func (s *server) run() {
	timer := time.NewTimer(s.c.o.CheckInterval)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-s.wake:
		case <-s.ctx.Done():
			return
		}
		timer.Reset(s.tend())
	}
}

// tend checks the server if it is time, and returns the time until the next check.
func (s *server) tend() time.Duration {
	c := s.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if s.state != ejected && c.o.Check == nil {
		return c.o.CheckInterval
	}
	permit, err := s.breaker.Allow()
	if err != nil {
		return max(time.Until(s.breaker.Until()), time.Millisecond)
	}
	c.mu.Unlock()
	err = s.check()
	c.mu.Lock()
	switch {
	case s.ctx.Err() != nil:
		permit.Cancel()
	case err != nil:
		permit.Open(err)
		s.cause, s.overloaded, s.unreachable = err, false, c.o.Check == nil
		if s.state == usable {
			s.eject(err)
		}
		return time.Millisecond // until the time of the next check is known
	case s.state == ejected && c.o.Check == nil && !s.unreachable:
		permit.Cancel()
		s.state = onTrial
	default:
		permit.Succeed()
		if s.breaker.State() == breaker.Closed { // unless calls have ejected it during the check
			s.recovered()
		}
	}
	return c.o.CheckInterval
}

// recovered takes the server into use. The caller holds mu.
func (s *server) recovered() {
	s.state, s.probing, s.unreachable, s.overloaded, s.cause = usable, false, false, false, nil
}

// check returns nil if the server can be used. Without Options.Check it makes a new connection,
// because an old one seems open for minutes after the loss of the server's host.
func (s *server) check() error {
	ctx, cancel := context.WithTimeout(s.ctx, s.c.o.CheckInterval)
	defer cancel()
	if s.c.o.Check != nil {
		return s.c.o.Check(ctx, s.client)
	}
	fresh, err := rpc.NewClient(s.member.Address, s.c.o.Client)
	if err == nil {
		err = errors.Join(fresh.Connect(ctx), fresh.Close())
	}
	return err
}
