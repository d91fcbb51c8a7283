package replay

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/jonboulle/clockwork"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/testkit"
)

// paced returns a replay of requests with the given timestamps at twice the speed, with a fake
// clock.
func paced(t *testing.T, timestamps ...int64) (*Config, *clockwork.FakeClock) {
	t.Helper()
	var text []byte
	for i, ts := range timestamps {
		text = fmt.Appendf(text, `{"timestamp":%d,"input_length":512,"output_length":1,"hash_ids":[%d]}`+"\n", ts, i)
	}
	trace := filepath.Join(t.TempDir(), "trace.jsonl")
	if err := os.WriteFile(trace, text, 0o600); err != nil {
		t.Fatal(err)
	}
	r := newRig(t, rigOptions{geometry: latent, slots: 8})
	clock := clockwork.NewFakeClock()
	return &Config{
		Device: r.dev, Store: r.store, Geometry: latent, Identity: latent.Identity("", ""), Trace: trace, Speed: 2, Clock: clock,
	}, clock
}

// A request starts at its time after the first request, and not earlier.
func TestDefectRequestStartsBeforeItsTime(t *testing.T) {
	c, clock := paced(t, 5000, 6000, 6000, 9000)
	done := make(chan struct{}, 8)
	c.Progress = func(Step) { done <- struct{}{} }
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience())
	defer cancel()
	var rep *Report
	ended := make(chan error, 1)
	go func() {
		var err error
		rep, err = Run(ctx, *c)
		ended <- err
	}()
	await := func(n int, when string) {
		t.Helper()
		for range n {
			select {
			case <-done:
			case <-ctx.Done():
				t.Fatalf("%s a request did not run", when)
			}
		}
	}
	sleeping := func(when string) {
		t.Helper()
		if err := clock.BlockUntilContext(ctx, 1); err != nil {
			t.Fatalf("%s no request waits: %v", when, err)
		}
		if len(done) > 0 {
			t.Fatalf("%s a request had run", when)
		}
	}
	await(1, "at once")
	sleeping("before the second's time")
	clock.Advance(499 * time.Millisecond)
	sleeping("a millisecond before it")
	clock.Advance(time.Millisecond)
	await(2, "at the time of two")
	sleeping("before the last's time")
	clock.Advance(1500 * time.Millisecond)
	await(1, "at the last's time")
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if !rep.Complete || rep.LagUS.P99 != 1 || rep.Asked.Speed != 2 {
		t.Errorf("complete %v, lag %+v, asked %+v; want the smallest lag, 1", rep.Complete, rep.LagUS, rep.Asked)
	}
}

// A request that is delayed by others is late, and the report contains the delay.
func TestReplayReportsItsLag(t *testing.T) {
	c, clock := paced(t, 0, 1000)
	c.Progress = func(s Step) { clock.Advance(5 * time.Second) }
	rep, err := Run(t.Context(), *c)
	if err != nil {
		t.Fatal(err)
	}
	if want := 4500 * time.Millisecond; time.Duration(rep.LagUS.P99)*time.Microsecond < want || rep.LagUS.P50 != 1 {
		t.Errorf("lag %+v, want %v of the second request and none of the first", rep.LagUS, want)
	}
}

func TestWaitForATimeEndsWithTheContext(t *testing.T) {
	c, clock := paced(t, 0, math.MaxInt64)
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience())
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		_, err := Run(ctx, *c)
		ended <- err
	}()
	if err := clock.BlockUntilContext(ctx, 1); err != nil {
		t.Fatal(err)
	}
	cancel()
	select {
	case err := <-ended:
		if !errors.Is(err, errdefs.ErrCanceled) {
			t.Errorf("error %v, want ErrCanceled", err)
		}
	case <-time.After(testkit.Patience()):
		t.Fatal("the wait did not end with its context")
	}
}

func TestWhenARequestIsDue(t *testing.T) {
	for _, c := range []struct {
		speed        float64
		first, stamp int64
		want         time.Duration
	}{
		{1, 0, 1500, 1500 * time.Millisecond},
		{0.5, 100, 1100, 2 * time.Second},
		{1000, 0, 1, time.Microsecond},
		{1, 1000, 10, 0},
		{1, 0, math.MaxInt64, math.MaxInt64},
		{1e-300, 0, 1, math.MaxInt64},
	} {
		p := pace{speed: c.speed, first: c.first}
		if got := p.after(c.stamp); got != c.want {
			t.Errorf("%d after %d at speed %v is due after %v, want %v", c.stamp, c.first, c.speed, got, c.want)
		}
	}
	for _, speed := range []float64{-1, math.NaN(), math.Inf(1)} {
		if err := (&Config{Speed: speed}).Validate(); err == nil || !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("speed %v: %v", speed, err)
		}
	}
}
