package tiertest

import (
	"context"
	"errors"
	"testing/synctest"
	"time"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/tier"
)

func (s *suite) ready(tr tier.Tier, n int) int {
	s.Helper()
	ready := 0
	for i := range n {
		if s.state(tr, Key(i)) == tier.Ready {
			s.mustGet(tr, Key(i))
			ready++
		}
	}
	return ready
}

func testEviction(s *suite) {
	const capacity, n = 6, 20
	tr := s.open(capacity)
	for i := range n {
		s.put(tr, Key(i))
		if state := s.state(tr, Key(i)); state != tier.Ready {
			s.Errorf("block %d is %s right after its put", i, state)
		}
	}
	if ready := s.ready(tr, n); ready != capacity {
		s.Errorf("%d blocks are ready, want %d", ready, capacity)
	}
	if st, ok := s.stats(tr); ok && (st.Blocks != capacity || st.Puts != n || st.Evictions != n-capacity) {
		s.Errorf("%d blocks, %d puts, %d evictions counted; want %d, %d, %d", st.Blocks, st.Puts, st.Evictions, capacity, n, n-capacity)
	}
}

func testRetainedStays(s *suite) {
	const capacity, n = 6, 40
	tr := s.open(capacity)
	pins := []int{0, 3, 4, 7, 12}
	for i := range n {
		s.put(tr, Key(i))
		for _, p := range pins {
			if p == i {
				s.mustRetain(tr, Key(i))
			}
		}
	}
	for _, p := range pins {
		s.mustGet(tr, Key(p))
		tr.Release(Keys(p))
	}
	for i := n; i < 2*n; i++ {
		s.put(tr, Key(i)) // released blocks need no space
	}
	if ready := s.ready(tr, 2*n); ready != capacity {
		s.Errorf("%d blocks are ready, want %d", ready, capacity)
	}
}

// testPutWaits checks that a Put waits without spinning while all space is pinned. In a bubble,
// time passes only while all goroutines are blocked.
func testPutWaits(s *suite) {
	const capacity = 3
	tr := s.open(capacity)
	for i := range capacity {
		s.put(tr, Key(i))
		s.mustRetain(tr, Key(i))
	}
	cause := errors.New("too long")
	ctx, cancel := context.WithTimeoutCause(s.Context(), time.Minute, cause)
	defer cancel()
	begin := time.Now()
	s.wantIs("put with every place pinned", tr.Put(ctx, Key(8), s.image(Key(8))), errdefs.ErrBusy, cause)
	if waited := time.Since(begin); waited != time.Minute {
		s.Errorf("it waited for %s, want a minute", waited)
	}
	s.wantMiss(tr, Key(8))
	src := s.image(Key(9))
	done := make(chan error, 1)
	go func() { done <- tr.Put(s.Context(), Key(9), src) }()
	synctest.Wait()
	select {
	case err := <-done:
		s.Fatalf("put did not wait: %v", err)
	default:
	}
	tr.Release(Keys(1))
	if err := <-done; err != nil {
		s.Fatal(err)
	}
	s.mustGet(tr, Key(9))
	s.wantMiss(tr, Key(1))
	tr.Release(Keys(0))
	tr.Release(Keys(2))
}
