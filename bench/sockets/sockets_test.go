package sockets

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"github.com/kvlane/kvlane/bench"
	"github.com/kvlane/kvlane/bench/rounds"
	"github.com/kvlane/kvlane/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Both kinds of servers return the expected bytes, and allocate nothing for a request.
func TestSocketsAllocateNothingForARequest(t *testing.T) {
	request, result := bytes.Repeat([]byte("q"), 4101), bytes.Repeat([]byte("r"), 5003)
	for _, o := range []Options{{Request: request, Depth: 32}, {Request: request[:100], Result: result, Depth: 32, MaxRead: 3000}} {
		want := o.Result
		if want == nil {
			want = o.Request
		}
		checked := 0
		o.Check = func(b []byte) error {
			if checked++; !bytes.Equal(b, want) {
				return errors.New("other bytes")
			}
			return nil
		}
		s, err := Open(t.Context(), o)
		must(t, err)
		d, all := new(rounds.Times), 20*time.Millisecond
		must(t, s.Run(all, d))
		before := bench.UsageNow()
		must(t, s.Run(all, d))
		if n := before.Since().Allocs; n > 50 && n > uint64(d.Total()/100) {
			t.Errorf("%d allocations for %d requests", n, d.Total())
		}
		if int64(checked) != d.Total() || checked < 2*o.Depth {
			t.Errorf("%d results were checked, of %d", checked, d.Total())
		}
		must(t, s.Close())
	}
}

func TestRunReturnsTheErrorOfACheck(t *testing.T) {
	wrong := errors.New("wrong")
	s, err := Open(t.Context(), Options{Request: []byte("question"), Depth: 2, Check: func([]byte) error { return wrong }})
	must(t, err)
	defer func() { must(t, s.Close()) }()
	if err := s.Run(time.Millisecond, new(rounds.Times)); !errors.Is(err, wrong) {
		t.Errorf("%v", err)
	}
}
