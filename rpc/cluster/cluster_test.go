package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/metadata"
	"github.com/kvlane/kvlane/rpc"
	"github.com/kvlane/kvlane/rpc/cluster"
)

func TestWeightsOfServers(t *testing.T) {
	list := nodes(t, 3)
	g := new(group)
	g.set(member(list[0], 1), member(list[1], 2), member(list[2], 3))
	c := newClient(t, g, cluster.Options{})
	for range 60 {
		if _, err := ask(t.Context(), c); err != nil {
			t.Fatal(err)
		}
	}
	for i, n := range list {
		if got := n.runs.Load(); got != int64(10*(i+1)) {
			t.Errorf("%d calls of 60 at the server with weight %d of 6", got, i+1)
		}
	}
}

// A server is killed and restarted under load. Idempotent calls do not fail. Of others only those
// that the server has received may fail, and none of them runs twice.
func TestServerIsKilledAndRestarted(t *testing.T) {
	for _, idempotent := range []bool{true, false} {
		t.Run(fmt.Sprintf("idempotent=%t", idempotent), func(t *testing.T) {
			list := nodes(t, 3)
			o := fast(cluster.Options{RetryShare: 1})
			if idempotent {
				o.Idempotent = anyMethod
			}
			c := newClient(t, of(list...), o)
			const callers = 4
			stop := load(t, c, callers)
			waitFor(t, func() bool { return list[0].runs.Load() > 10 })
			list[0].stop()
			waitFor(t, func() bool { return statsOf(c, list[0]).Ejected })
			waitFor(t, func() bool { return strings.Contains(fmt.Sprint(statsOf(c, list[0]).Why), "refused") }) // by a check
			others := list[1].runs.Load()
			waitFor(t, func() bool { return list[1].runs.Load() > others+50 })
			list[0].start()
			before := list[0].runs.Load()
			waitFor(t, func() bool { return list[0].runs.Load() > before+50 })
			calls, errs := stop()
			if idempotent && len(errs) > 0 || len(errs) > callers {
				t.Errorf("%d of %d calls failed: %v", len(errs), calls, errs)
			}
			for _, err := range errs {
				if code := rpc.CodeOf(err); code != rpc.EndOfFile && code != rpc.FailedSocket || errors.Is(err, rpc.ErrNotSent) {
					t.Error(err)
				}
			}
			runs := int64(0)
			for _, n := range list {
				runs += n.runs.Load()
			}
			if !idempotent && runs > calls {
				t.Errorf("%d executions of %d calls", runs, calls)
			}
			if s := c.Stats(); s.Calls != calls || s.Failed != int64(len(errs)) || statsOf(c, list[0]).Ejections == 0 {
				t.Errorf("%d calls, %d errors, %+v", calls, len(errs), s)
			}
		})
	}
}

// A server shuts down under load, with calls in progress. No call fails.
func TestLogOff(t *testing.T) {
	list := nodes(t, 2)
	c := newClient(t, of(list...), fast(cluster.Options{}))
	release := make(chan struct{})
	list[0].set(until(release))
	slow := make(chan error, 1)
	go func() { // holds the server in its shutdown
		_, err := ask(t.Context(), c)
		for err == nil && list[0].runs.Load() == 0 {
			_, err = ask(t.Context(), c)
		}
		slow <- err
	}()
	waitFor(t, func() bool { return list[0].runs.Load() == 1 })
	list[0].set(nil)
	stop := load(t, c, 4)
	waitFor(t, func() bool { return list[0].runs.Load() > 50 })
	server, down := list[0].current(), make(chan error, 1)
	go func() { down <- server.Shutdown(t.Context()) }()
	waitFor(t, func() bool { return statsOf(c, list[0]).Ejected })
	others := list[1].runs.Load()
	waitFor(t, func() bool { return list[1].runs.Load() > others+100 })
	if n := server.Stats().Rejected; n > 4 { // one of each caller
		t.Errorf("%d calls came to a server in shutdown", n)
	}
	close(release)
	must(t, <-down)
	must(t, <-slow)
	waitFor(t, func() bool { return strings.Contains(fmt.Sprint(statsOf(c, list[0]).Why), "refused") })
	if calls, errs := stop(); len(errs) > 0 {
		t.Errorf("%d of %d calls failed: %v", len(errs), calls, errs)
	}
	if s := c.Stats(); s.Retries == 0 || s.Refused != 0 {
		t.Errorf("%+v", s)
	}
}

// A server shuts down under load, without a call that holds it. No call fails.
func TestShutdownUnderLoad(t *testing.T) {
	for range 10 {
		list := nodes(t, 2)
		c := newClient(t, of(list...), fast(cluster.Options{}))
		stop := load(t, c, 4)
		waitFor(t, func() bool { return list[0].runs.Load() > 20 })
		must(t, list[0].current().Shutdown(t.Context()))
		if calls, errs := stop(); len(errs) > 0 {
			t.Errorf("%d of %d calls failed: %v", len(errs), calls, errs)
		}
	}
}

// Calls that a server refuses for overload are repeated at another one.
func TestOverloadedServer(t *testing.T) {
	for _, code := range []rpc.Code{rpc.LimitReached, rpc.Overcrowded} {
		list := nodes(t, 2)
		list[0].set(fails(code))
		c := newClient(t, of(list...), fast(cluster.Options{RetryShare: 1, Failures: 3}))
		for range 20 {
			if got, err := ask(t.Context(), c); err != nil || got != list[1].address {
				t.Fatalf("%q, %v", got, err)
			}
		}
		if s := statsOf(c, list[0]); s.Failures < 3 || s.Ejections == 0 || c.Stats().Retries != s.Failures || list[0].runs.Load() != s.Failures {
			t.Errorf("%v: %d runs, %+v", code, list[0].runs.Load(), c.Stats())
		}
		list[0].set(nil)
		waitFor(t, func() bool {
			got, err := ask(t.Context(), c)
			return err == nil && got == list[0].address
		})
	}
}

// Servers that all are overloaded are called further, and the callers see the reason.
func TestAllServersAreOverloaded(t *testing.T) {
	list := []*node{newNode(t, rpc.ServerOptions{MaxConcurrency: 1}), newNode(t, rpc.ServerOptions{MaxConcurrency: 1})}
	for _, n := range list {
		n.set(func(context.Context) error { time.Sleep(time.Millisecond); return nil })
	}
	c := newClient(t, of(list...), cluster.Options{MinEject: time.Hour}) // an ejected server would stay so
	stop := load(t, c, 8)
	waitFor(t, func() bool { s := c.Stats().Servers; return s[0].Ejected && s[1].Ejected })
	before := list[0].runs.Load()
	waitFor(t, func() bool { return list[0].runs.Load() > before+50 })
	_, errs := stop()
	if len(errs) == 0 {
		t.Error("no call failed")
	}
	for _, err := range errs {
		if rpc.CodeOf(err) != rpc.LimitReached {
			t.Fatal(err)
		}
	}
}

// The budget bounds the repeated requests when all servers refuse calls.
func TestRetryBudget(t *testing.T) {
	list := nodes(t, 3)
	for _, n := range list {
		n.set(fails(rpc.LimitReached))
	}
	c := newClient(t, of(list...), cluster.Options{Failures: 1 << 20, RetryShare: 0.1})
	const calls = 200
	for range calls {
		if _, err := ask(t.Context(), c); rpc.CodeOf(err) != rpc.LimitReached {
			t.Fatal(err)
		}
	}
	requests := int64(0)
	for _, n := range list {
		requests += n.runs.Load()
	}
	s := c.Stats()
	if s.Retries != requests-calls || s.Retries < 10 || s.Retries > 10+calls/10 || s.Refused < calls-s.Retries || s.Failed != calls {
		t.Errorf("%d requests, %+v", requests, s)
	}
}

func TestAllServersAreDown(t *testing.T) {
	list := nodes(t, 3)
	c := newClient(t, of(list...), cluster.Options{MinEject: time.Minute, MaxAttempts: 2})
	for _, n := range list {
		n.stop()
	}
	for range 2 { // the second call tries no server
		ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience())
		began := time.Now()
		_, err := ask(ctx, c)
		cancel()
		if rpc.CodeOf(err) != rpc.FailedSocket || !errors.Is(err, rpc.ErrNotSent) || time.Since(began) > testkit.Patience()/2 {
			t.Fatalf("after %v: %v", time.Since(began), err)
		}
		for _, n := range list {
			if !strings.Contains(err.Error(), n.address+": ejected, next check in ") || !strings.Contains(err.Error(), "refused") {
				t.Errorf("%s is not in %v", n.address, err)
			}
		}
	}
	for _, s := range c.Stats().Servers {
		if s.Attempts != 1 || s.Failures != 1 || !s.Ejected || s.Ejections != 1 {
			t.Errorf("%+v", s)
		}
	}
}

// A server that accepts connections and never answers costs its callers no more than their
// deadlines, and is ejected.
func TestSilentServer(t *testing.T) {
	list := nodes(t, 2)
	list[0].set(hangs)
	c := newClient(t, of(list...), cluster.Options{MinEject: time.Minute})
	late := 0
	for range 20 {
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		_, err := ask(ctx, c)
		cancel()
		if err != nil {
			late++
			if rpc.CodeOf(err) != rpc.TimedOut || !strings.Contains(err.Error(), "server "+list[0].address) {
				t.Fatal(err)
			}
		}
	}
	if s := statsOf(c, list[0]); late < 3 || late > 5 || !s.Ejected || rpc.CodeOf(s.Why) != rpc.TimedOut {
		t.Errorf("%d calls timed out, %+v", late, c.Stats())
	}
	expired, cancel := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
	defer cancel()
	before := list[1].runs.Load()
	if _, err := ask(expired, c); rpc.CodeOf(err) != rpc.TimedOut || !errors.Is(err, rpc.ErrNotSent) || list[1].runs.Load() != before {
		t.Errorf("after the deadline: %v", err)
	}
}

// The list changes while calls run. No call fails, the calls of a removed server end normally, and
// then its connections are closed.
func TestListChanges(t *testing.T) {
	list := nodes(t, 4)
	g := of(list[0], list[1])
	c := newClient(t, g, cluster.Options{})
	stop := load(t, c, 4)
	release := make(chan struct{})
	for i := range 30 {
		a, b := list[i%4], list[(i+1)%4]
		before := b.runs.Load()
		g.set(member(a, 1+i), member(b, 1))
		waitFor(t, func() bool { return b.runs.Load() > before+2 })
	}
	g.set(member(list[0], 1), member(list[1], 1))
	waitFor(t, func() bool { return len(c.Stats().Servers) == 2 && statsOf(c, list[0]).Weight == 1 })
	waitFor(t, func() bool { return list[0].current().Stats().Connections == 1 }) // calls of its former membership have ended
	list[0].set(until(release))
	waitFor(t, func() bool { n := list[0].current().Stats(); return n.Connections == 1 && n.Calls == 4 })
	g.set(member(list[1], 1))
	waitFor(t, func() bool { return len(c.Stats().Servers) == 1 })
	time.Sleep(20 * time.Millisecond)
	if n := list[0].current().Stats(); n.Connections != 1 || n.Calls != 4 {
		t.Errorf("a removed server with calls: %+v", n)
	}
	close(release)
	for _, n := range []*node{list[0], list[2], list[3]} {
		waitFor(t, func() bool { return n.current().Stats().Connections == 0 })
	}
	if calls, errs := stop(); len(errs) > 0 {
		t.Errorf("%d of %d calls failed: %v", len(errs), calls, errs)
	}
	g.set(metadata.Member{Name: "bad", Address: "bad", Weight: 1})
	waitFor(t, func() bool { return errors.Is(c.Stats().ListErr, errdefs.ErrInvalid) })
	if got, err := ask(t.Context(), c); err != nil || got != list[1].address {
		t.Errorf("after a list that is not valid: %q, %v", got, err)
	}
	g.set()
	waitFor(t, func() bool { return len(c.Stats().Servers) == 0 })
	if _, err := ask(t.Context(), c); rpc.CodeOf(err) != rpc.FailedSocket || !strings.Contains(err.Error(), "list of servers is empty") {
		t.Errorf("without servers: %v", err)
	}
}

// Keys stay at their servers. While a server is down only its keys are elsewhere.
func TestConsistentHash(t *testing.T) {
	list := nodes(t, 4)
	c := newClient(t, of(list...), fast(cluster.Options{Policy: cluster.ConsistentHash, Idempotent: anyMethod}))
	if _, err := ask(t.Context(), c); rpc.CodeOf(err) != rpc.BadRequest {
		t.Errorf("a call without a key: %v", err)
	}
	const keys = 200
	places := func() []string {
		out := make([]string, keys)
		for i := range out {
			got, err := ask(cluster.WithKey(t.Context(), fmt.Sprint("key-", i)), c)
			if err != nil {
				t.Fatal(err)
			}
			out[i] = got
		}
		return out
	}
	first := places()
	list[1].stop()
	moved := 0
	spread := make(map[string]bool)
	for i, at := range places() {
		if first[i] == list[1].address {
			moved++
			spread[at] = true
		} else if at != first[i] {
			t.Errorf("key %d moved from %s to %s", i, first[i], at)
		}
	}
	if moved < keys/8 || moved > keys/2 || len(spread) != 3 {
		t.Errorf("%d of %d keys moved, to %d servers", moved, keys, len(spread))
	}
	list[1].start()
	waitFor(t, func() bool { return !statsOf(c, list[1]).Ejected })
	for i, at := range places() {
		if at != first[i] {
			t.Errorf("key %d stays at %s, not %s", i, at, first[i])
		}
	}
}

func TestLeastLoaded(t *testing.T) {
	list := nodes(t, 3)
	g := new(group)
	g.set(member(list[0], 1), member(list[1], 2), member(list[2], 3))
	c := newClient(t, g, cluster.Options{Policy: cluster.LeastLoaded})
	release := make(chan struct{})
	for _, n := range list {
		n.set(until(release))
	}
	done := make(chan error)
	for i := range 12 {
		go func() {
			_, err := ask(t.Context(), c)
			done <- err
		}()
		waitFor(t, func() bool { return list[0].runs.Load()+list[1].runs.Load()+list[2].runs.Load() == int64(i+1) })
	}
	if a, b, d := list[0].runs.Load(), list[1].runs.Load(), list[2].runs.Load(); a != 2 || b != 4 || d != 6 {
		t.Errorf("%d, %d and %d calls in progress with the weights 1, 2 and 3", a, b, d)
	}
	close(release)
	for range 12 {
		must(t, <-done)
	}
}

// A health check decides on the use of a server: it ejects one that answers calls, and keeps an
// ejected one out of use until it succeeds.
func TestHealthCheck(t *testing.T) {
	list := nodes(t, 2)
	o := fast(cluster.Options{CheckInterval: 10 * time.Millisecond})
	bad := make(chan bool, 1)
	bad <- false
	o.Check = func(ctx context.Context, c *rpc.Client) error {
		if err := c.Connect(ctx); err != nil {
			return err
		}
		is := <-bad
		bad <- is
		if is {
			return errors.New("not ready")
		}
		return nil
	}
	c := newClient(t, of(list[0]), o)
	if _, err := ask(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	<-bad
	bad <- true
	waitFor(t, func() bool { return statsOf(c, list[0]).Ejected })
	if _, err := ask(t.Context(), c); rpc.CodeOf(err) != rpc.FailedSocket || !strings.Contains(err.Error(), "not ready") {
		t.Errorf("a call of an ejected server: %v", err)
	}
	if runs := list[0].runs.Load(); runs != 1 {
		t.Errorf("%d calls", runs)
	}
	<-bad
	bad <- false
	waitFor(t, func() bool { return !statsOf(c, list[0]).Ejected })
	if _, err := ask(t.Context(), c); err != nil {
		t.Error(err)
	}
}

func TestWrongOptions(t *testing.T) {
	list := nodes(t, 1)
	for _, o := range []cluster.Options{
		{Policy: 3},
		{MaxAttempts: -1},
		{RetryShare: -1},
		{RetryShare: 2},
		{BackupAfter: 1},
		{BackupAfter: -1, Idempotent: anyMethod},
		{CheckInterval: -1},
		{Failures: -1},
		{MinEject: -1},
		{Client: rpc.ClientOptions{MaxIdle: -1}},
	} {
		if _, err := cluster.New(of(list...), o); !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("%+v: %v", o, err)
		}
	}
	c, err := cluster.New(of(list...), cluster.Options{})
	must(t, err)
	if err := c.Call(t.Context(), "no method", nil, nil); rpc.CodeOf(err) != rpc.BadRequest {
		t.Errorf("a wrong method: %v", err)
	}
	for range 2 {
		must(t, c.Close())
	}
	if _, err := ask(t.Context(), c); !errors.Is(err, errdefs.ErrClosed) || rpc.CodeOf(err) != rpc.FailedSocket {
		t.Errorf("after Close: %v", err)
	}
}

// A handler that has run returns the codes with which servers refuse calls. The call is not repeated.
func TestHandlersThatReturnRefusalsRunOnce(t *testing.T) {
	for _, code := range []rpc.Code{rpc.LogOff, rpc.LimitReached, rpc.Overcrowded} {
		var runs atomic.Int64
		list := nodes(t, 3)
		for _, n := range list {
			n.o.Interceptors = []rpc.Interceptor{func(ctx context.Context, in proto.Message, next rpc.Handler) (proto.Message, error) {
				if _, err := next(ctx, in); err != nil {
					return nil, err
				}
				runs.Add(1)
				return nil, rpc.Errorf(code, "after the work")
			}}
			n.stop()
			n.start()
		}
		c := newClient(t, of(list...), cluster.Options{RetryShare: 1})
		if _, err := ask(t.Context(), c); rpc.CodeOf(err) != code || runs.Load() != 1 {
			t.Errorf("%v: %d executions, %v", code, runs.Load(), err)
		}
		if s := c.Stats(); s.Retries != 0 || s.Servers[0].Ejections+s.Servers[1].Ejections+s.Servers[2].Ejections != 0 {
			t.Errorf("%v: %+v", code, s)
		}
	}
}
