package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/metadata"
	"github.com/kvlane/kvlane/rpc"
	"github.com/kvlane/kvlane/rpc/cluster"
)

// executions counts the executions of each request.
type executions struct {
	mu   sync.Mutex
	runs map[string]int
}

func (e *executions) add(ctx context.Context) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.runs[rpc.FromContext(ctx).RequestID]++
}

// Servers are killed, restarted, shut down, overloaded, slowed down, removed and added at random,
// while calls run. No call that is not idempotent is executed twice, each call that succeeds was
// executed, errors have the expected codes, and afterwards all servers are used again.
func TestRandomFaults(t *testing.T) {
	for seed := range uint64(4) {
		for _, policy := range []cluster.Policy{cluster.RoundRobin, cluster.LeastLoaded, cluster.ConsistentHash} {
			t.Run(fmt.Sprintf("seed=%d,policy=%d", seed, policy), func(t *testing.T) { randomFaults(t, rand.New(rand.NewPCG(seed, 1)), policy, seed%2 == 0) })
		}
	}
}

func randomFaults(t *testing.T, r *rand.Rand, policy cluster.Policy, idempotent bool) {
	t.Helper()
	list := nodes(t, 4)
	seen := executions{runs: make(map[string]int)}
	healthy := func(ctx context.Context) error { seen.add(ctx); return nil }
	for _, n := range list {
		n.set(healthy)
	}
	g := of(list...)
	o := fast(cluster.Options{Policy: policy, RetryShare: 1})
	o.Client.Connections = []rpc.Connections{rpc.Single, rpc.Pooled, rpc.Short}[r.IntN(3)]
	if idempotent {
		o.Idempotent, o.BackupAfter = anyMethod, 3*time.Millisecond
	}
	c := newClient(t, g, o)
	stop := make(chan struct{})
	var group sync.WaitGroup
	end := sync.OnceFunc(func() { close(stop); group.Wait() })
	defer end()
	for caller := range 4 {
		group.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				id := fmt.Sprintf("%d-%d", caller, i)
				ctx, cancel := context.WithTimeout(cluster.WithKey(t.Context(), id), 50*time.Millisecond)
				_, err := ask(ctx, c, rpc.WithRequestID(id))
				cancel()
				seen.mu.Lock()
				runs := seen.runs[id]
				seen.mu.Unlock()
				if err == nil && runs == 0 || !idempotent && runs > 1 || errors.Is(err, rpc.ErrNotSent) && runs > 0 {
					t.Errorf("call %s ran %d times: %v", id, runs, err)
				}
				switch rpc.CodeOf(err) {
				case rpc.OK, rpc.FailedSocket, rpc.EndOfFile, rpc.TimedOut, rpc.LimitReached, rpc.LogOff:
				case rpc.Internal: // a handler whose server was closed
				default:
					t.Errorf("call %s: %v", id, err)
				}
			}
		})
	}
	down := make(map[*node]bool)
	for range 60 {
		n := list[r.IntN(len(list))]
		switch r.IntN(6) {
		case 0:
			n.stop()
			down[n] = true
		case 1:
			if down[n] {
				n.start()
				delete(down, n)
			}
		case 2:
			n.set(fails(rpc.LimitReached))
		case 3:
			n.set(func(ctx context.Context) error { seen.add(ctx); time.Sleep(10 * time.Millisecond); return nil })
		case 4:
			n.set(healthy)
		case 5:
			var some []metadata.Member
			for _, n := range list {
				if r.IntN(4) > 0 {
					some = append(some, member(n, 1+r.IntN(5)))
				}
			}
			g.set(some...)
		}
		time.Sleep(time.Duration(r.IntN(10)) * time.Millisecond)
	}
	members := make([]metadata.Member, len(list))
	for i, n := range list {
		n.set(healthy)
		if down[n] {
			n.start()
		}
		members[i] = member(n, 1)
	}
	g.set(members...)
	for _, n := range list {
		before := n.runs.Load()
		waitFor(t, func() bool { return n.runs.Load() > before+10 && !statsOf(c, n).Ejected })
	}
	end()
	waitFor(t, func() bool {
		total := 0
		for _, s := range c.Stats().Servers {
			total += s.InFlight
		}
		return total == 0
	})
}

// Close ends the calls in progress, also those at removed servers and those with backup requests.
func TestCloseEndsCalls(t *testing.T) {
	list := nodes(t, 3)
	for _, n := range list {
		n.set(hangs)
	}
	g := of(list...)
	c, err := cluster.New(g, cluster.Options{Idempotent: anyMethod, BackupAfter: time.Millisecond})
	must(t, err)
	const calls = 6
	done := make(chan error, calls)
	for range calls {
		go func() {
			_, err := ask(t.Context(), c)
			done <- err
		}()
	}
	waitFor(t, func() bool { return list[0].runs.Load() > 0 && c.Stats().Backups == calls })
	g.set(member(list[1], 1))
	waitFor(t, func() bool { return len(c.Stats().Servers) == 1 })
	closed := make(chan error, 1)
	go func() { closed <- c.Close() }()
	select {
	case err := <-closed:
		must(t, err)
	case <-time.After(testkit.Patience()):
		t.Fatal("Close waits for calls")
	}
	for range calls {
		select {
		case err := <-done:
			if rpc.CodeOf(err) != rpc.FailedSocket || !errors.Is(err, errdefs.ErrClosed) {
				t.Error(err)
			}
		case <-time.After(testkit.Patience()):
			t.Fatal("a call is in progress after Close")
		}
	}
}

func TestNilArguments(t *testing.T) {
	if _, err := cluster.New(nil, cluster.Options{}); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("members: %v", err)
	}
	c, err := cluster.New(of(), cluster.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	defer func() {
		if got := recover(); got != "cluster: nil context" {
			t.Errorf("context: panic %v", got)
		}
	}()
	var none context.Context
	_, err = ask(none, c)
	t.Errorf("context: %v", err)
}
