package breaker_test

import (
	"errors"
	"testing"
	"time"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/breaker"
)

const (
	fast = 10 * time.Millisecond
	slow = 200 * time.Millisecond
)

func latencies(t *testing.T, n int) (list []*breaker.Latency) {
	t.Helper()
	l, err := breaker.NewLatencies(breaker.LatencyOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for range n {
		list = append(list, l.Add())
	}
	return list
}

// observe records n latencies of each peer. It returns the first peer that is slow, or -1.
func observe(list []*breaker.Latency, n int, of func(i int) time.Duration) int {
	for range n {
		for i, p := range list {
			var e *breaker.SlowError
			if err := p.Observe(of(i)); errors.As(err, &e) && errors.Is(err, errdefs.ErrBusy) && e.Latency > e.Limit {
				return i
			}
		}
	}
	return -1
}

func TestASlowPeerIsFound(t *testing.T) {
	third := func(i int) time.Duration {
		if i == 3 {
			return slow
		}
		return fast
	}
	for _, c := range []struct {
		name  string
		peers int
		of    func(i int) time.Duration
		want  int
	}{
		{"one of five", 5, third, 3},
		{"all of five", 5, func(int) time.Duration { return slow }, -1},
		{"only two", 2, func(i int) time.Duration { return fast + time.Duration(i)*slow }, -1},
		{"fast enough for any", 5, func(i int) time.Duration { return third(i) / 20 }, -1},
		{"not far above the others", 5, func(i int) time.Duration { return slow/2 + third(i)/2 }, -1},
	} {
		if got := observe(latencies(t, c.peers), 100, c.of); got != c.want {
			t.Errorf("%s: peer %d is slow, want %d", c.name, got, c.want)
		}
	}
	list := latencies(t, 5)
	observe(list, 100, func(int) time.Duration { return fast })
	if list[3].Observe(100*slow) != nil {
		t.Error("one very slow call makes a peer slow")
	}
}

// TestProbesOfASlowPeer checks that the first call after a peer was slow decides by itself.
func TestProbesOfASlowPeer(t *testing.T) {
	list := latencies(t, 5)
	observe(list, 100, func(int) time.Duration { return fast })
	n := 0
	for list[3].Observe(slow) == nil {
		if n++; n > 50 {
			t.Fatal("the peer is not slow after 50 slow calls")
		}
	}
	if list[3].Observe(slow) == nil {
		t.Error("a slow probe is no error")
	}
	if err := list[3].Observe(fast); err != nil {
		t.Errorf("a fast probe: %v", err)
	}
	if err := list[3].Observe(slow); err != nil {
		t.Errorf("the call after a fast probe: %v", err)
	}
}

func TestPeersAreRemoved(t *testing.T) {
	l, err := breaker.NewLatencies(breaker.LatencyOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var list []*breaker.Latency
	for range 4 {
		list = append(list, l.Add())
	}
	l.Remove(list[0])
	l.Remove(list[1])
	if got := observe(list[2:], 100, func(i int) time.Duration { return fast + time.Duration(i)*slow }); got != -1 {
		t.Errorf("peer %d of two is slow", got)
	}
	if _, err := breaker.NewLatencies(breaker.LatencyOptions{Factor: -1}); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("a negative factor: %v, want ErrInvalid", err)
	}
}
