package blocks

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/kvlane/kvlane/bench/rounds"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestRunMeasuresEverySubject(t *testing.T) {
	o := Options{Sizes: []int64{64 << 10, 100_001}, Depths: []int{1, 8}, Rounds: 3, Duration: 5 * time.Millisecond}
	last := 0
	o.Progress = func(done, total int, _ string) {
		if last = done; total != 12 {
			t.Errorf("%d measurements in all, want 12", total)
		}
	}
	r, err := Run(t.Context(), o)
	must(t, err)
	if len(r.Points) != 14 || last != 12 {
		t.Fatalf("%d points after %d rounds, want 14 and 12", len(r.Points), last)
	}
	for _, p := range r.Points {
		if p.Ops < 3 || p.OpsPerSecond <= 0 || p.GBps <= 0 || p.P50Micros <= 0 || p.P99Micros < p.P50Micros || p.P999Micros < p.P99Micros {
			t.Errorf("point %+v", p)
		}
	}
	var text bytes.Buffer
	must(t, r.WriteText(&text))
	for _, want := range []string{"of sockets", "64 KiB", "at depth 8", "memory", "tcp"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("the report has no %q:\n%s", want, text.String())
		}
	}
	b, err := json.Marshal(r)
	must(t, err)
	var again Report
	must(t, json.Unmarshal(b, &again))
	if again.Kind != Kind || len(again.Points) != 14 {
		t.Errorf("report %+v", again)
	}
}

func TestInterruptedRunReportsItsPoints(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	o := Options{Sizes: []int64{4096}, Depths: []int{1, 2}, Rounds: 1, Duration: time.Millisecond}
	o.Progress = func(done, _ int, _ string) {
		if done == 1 {
			cancel()
		}
	}
	r, err := Run(ctx, o)
	if !errors.Is(err, context.Canceled) || len(r.Points) != 3 || r.Incomplete == "" {
		t.Errorf("report %+v, %v", r, err)
	}
}

func TestOptionsOutOfRange(t *testing.T) {
	for _, o := range []Options{
		{Sizes: []int64{0}}, {Sizes: []int64{9 << 20}}, {Depths: []int{0}}, {Depths: []int{1025}}, {Sizes: []int64{8 << 20}, Depths: []int{1024}}, {Rounds: -1}, {Duration: -1},
	} {
		if _, err := Run(t.Context(), o); !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("%+v: %v, want ErrInvalid", o, err)
		}
	}
}

func TestWrongBytesFail(t *testing.T) {
	piece := make([]byte, 4096)
	check := checkPiece(len(piece), xxh3.Hash(piece))
	result := append([]byte("head"), piece...)
	must(t, check(result))
	result[5] = 1
	if err := check(result); !errors.Is(err, errdefs.ErrCorrupt) {
		t.Errorf("%v, want ErrCorrupt", err)
	}
	r, err := open(t.Context(), 4096, 2)
	must(t, err)
	defer func() { must(t, r.close(t.Context())) }()
	must(t, r.subjects[2].Run(time.Millisecond, new(rounds.Times)))
	must(t, r.check())
	r.slots[1].Bytes()[7] ^= 1
	if err := r.check(); !errors.Is(err, errdefs.ErrCorrupt) {
		t.Errorf("%v, want ErrCorrupt", err)
	}
}
