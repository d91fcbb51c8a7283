package kvlane_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/kvlane/kvlane"
	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream"
	streamcopy "github.com/kvlane/kvlane/stream/copy"
	"github.com/kvlane/kvlane/stream/copy/plan"
)

// TestReportedSlowdownLowersTheBudget checks that ReportSlowdown reaches the budget of the copies.
func TestReportedSlowdownLowersTheBudget(t *testing.T) {
	e := openEngine(t, testConfig(t))
	before := e.PlanFigures().Limits
	for deadline := time.Now().Add(testkit.Patience()); e.PlanFigures().Limits.CTAs >= before.CTAs; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%+v for ten seconds of reports", before)
		}
		e.ReportSlowdown(50)
	}
}

// TestPolicyOfStreams checks the goals of streams. By default loads are balanced and dumps run in
// the background, as for serving a model. A configured goal applies to all streams, and bounds
// apply under any goal.
func TestPolicyOfStreams(t *testing.T) {
	serving := [3]plan.Goal{plan.Balanced, plan.Background, plan.Balanced}
	for _, tt := range []struct {
		policy plan.Policy
		want   [3]plan.Goal // goals of loads, dumps and other streams
	}{
		{plan.Policy{}, serving},
		{plan.Policy{MaxCTAs: 3, LinkShare: 0.5}, serving},
		{plan.Policy{Goal: plan.Throughput}, [3]plan.Goal{plan.Throughput, plan.Throughput, plan.Throughput}},
		{plan.Policy{Goal: plan.Background, MaxCTAs: 2}, [3]plan.Goal{plan.Background, plan.Background, plan.Background}},
	} {
		c := testConfig(t)
		c.Stream.Policy = tt.policy
		e := openEngine(t, c)
		loads, dumps := kvlane.StoreStreams(e)
		other := func() (stream.Stream, error) { return e.OpenStream() }
		for i, open := range []func() (stream.Stream, error){loads, dumps, other} {
			s, err := open()
			if err != nil {
				t.Fatal(err)
			}
			want := tt.policy
			want.Goal = tt.want[i]
			c, ok := s.(*streamcopy.Stream)
			if !ok {
				t.Fatalf("stream %d is %T", i, s)
			}
			if got := c.Policy(); got != want {
				t.Errorf("policy %+v: stream %d has %+v, want %+v", tt.policy, i, got, want)
			}
			if err := s.Close(t.Context()); err != nil {
				t.Error(err)
			}
		}
	}
}

// TestServingStagesBlocks checks the path of dumps. A block is one row in host memory and many
// pieces on the device. A kernel that writes it to the host would slow the model down, so the
// default policy stages blocks; with the goal of throughput the kernel is used.
func TestServingStagesBlocks(t *testing.T) {
	for goal, want := range map[plan.Goal]stream.Path{plan.Unset: stream.PathStaged, plan.Throughput: stream.PathKernel} {
		c := testConfig(t)
		c.Stream.Policy.Goal = goal
		e := openEngine(t, c)
		_, dumps := kvlane.StoreStreams(e)
		s, err := dumps()
		if err != nil {
			t.Fatal(err)
		}
		const rows, row, piece = 64, 64, 4 << 10
		pages, err := e.Device().Alloc(2*rows*row*piece, device.AllocOptions{})
		if err != nil {
			t.Fatal(err)
		}
		slots, err := e.Device().AllocHost(2 * rows * row * piece)
		if err != nil {
			t.Fatal(err)
		}
		var b mem.Batch
		for i := range int64(rows * row) {
			b.Src = append(b.Src, mem.Extent{Region: pages, Off: 2 * i * piece, Len: piece})
			b.Dst = append(b.Dst, mem.Extent{Region: slots, Off: i/row*2*row*piece + i%row*piece, Len: piece})
		}
		ticket, err := s.Submit(t.Context(), &b)
		if err != nil {
			t.Fatal(err)
		}
		if err := ticket.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := ticket.Completion().Path; got != want {
			t.Errorf("%s: by %s, want %s", goal, got, want)
		}
		if err := errors.Join(s.Close(t.Context()), e.Device().Free(pages), e.Device().Free(slots)); err != nil {
			t.Error(err)
		}
	}
}

func TestStreamConfigIsChecked(t *testing.T) {
	for name, s := range map[string]kvlane.StreamConfig{
		"policy":      {Policy: plan.Policy{MaxCTAs: -1}},
		"budget":      {Budget: plan.BudgetOptions{InterferencePercent: -3}},
		"calibration": {Calibration: "daily"},
	} {
		c := kvlane.Config{Stream: s}
		if err := c.Validate(); !errors.Is(err, errdefs.ErrInvalid) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: error %v, want ErrInvalid that names it", name, err)
		}
	}
}
