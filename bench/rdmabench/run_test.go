package rdmabench_test

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/kvlane/kvlane/bench/rdmabench"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/internal/present/presenttest"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/rdma"
	"github.com/kvlane/kvlane/rdma/registry"
	"github.com/kvlane/kvlane/rdma/soft"
)

var rewrite = flag.Bool("rewrite", false, "rewrite the golden files")

const most = 64 << 10

// options measure all operations at sizes that fit, larger than a chain, not even.
func options(tb testing.TB, g *registry.Registry) rdmabench.Options {
	tb.Helper()
	return rdmabench.Options{
		NIC: g, Local: host(tb, g, 2*most), Remote: host(tb, g, most), Sizes: []int64{1, 4097, most}, Iterations: 300,
	}
}

// measured checks that r has every figure, and that they make sense.
func measured(t *testing.T, r *rdmabench.Report, o *rdmabench.Options) {
	t.Helper()
	if n := 3 * len(o.Sizes); len(r.Bandwidth) != n || len(r.Latency) != n {
		t.Fatalf("%d bandwidths and %d latencies, want %d", len(r.Bandwidth), len(r.Latency), n)
	}
	for _, v := range r.Bandwidth {
		if v.Iterations != o.Iterations || v.MiBps <= 0 || v.PeakMiBps < v.MiBps {
			t.Errorf("%+v", v)
		}
		if rate := v.Mpps * 1e6 * float64(v.Bytes) / (1 << 20); rate < 0.999*v.MiBps || rate > 1.001*v.MiBps {
			t.Errorf("%+v: %g MiB/s by its messages", v, rate)
		}
	}
	for _, v := range r.Latency {
		if v.Iterations != o.Iterations || v.MinMicros <= 0 || v.MinMicros > v.TypicalMicros || v.TypicalMicros > v.P99Micros ||
			v.P99Micros > v.P999Micros || v.P999Micros > v.MaxMicros || v.MeanMicros < v.MinMicros || v.MeanMicros > v.MaxMicros {
			t.Errorf("%+v", v)
		}
	}
}

func TestRunOnSoft(t *testing.T) {
	o := options(t, softNIC(t, nil, soft.DeviceOptions{}))
	r, err := rdmabench.Run(t.Context(), o)
	check(t, err)
	measured(t, r, &o)
	var b strings.Builder
	check(t, r.WriteText(&b))
	if r.Provider != "soft" || strings.Count(b.String(), "provider soft") != 6 || !strings.Contains(b.String(), "no figures of a NIC") {
		t.Errorf("provider %q, text:\n%s", r.Provider, b.String())
	}
}

func TestVerbsRun(t *testing.T) {
	g, connect := verbsNIC(t)
	o := options(t, g)
	o.Connect = connect
	r, err := rdmabench.Run(t.Context(), o)
	check(t, err)
	measured(t, r, &o)
	if r.Provider != "ibv" {
		t.Errorf("provider %q", r.Provider)
	}
	var b strings.Builder
	check(t, r.WriteText(&b))
	t.Log(b.String())
}

// A request that fails ends the run with its status, whichever it is; and every one that moves wrong bytes does.
func TestFaultsEndTheRun(t *testing.T) {
	for _, op := range []string{soft.OpWrite, soft.OpRead, soft.OpSend} {
		clean := fault.New(1)
		o := options(t, softNIC(t, clean, soft.DeviceOptions{}))
		o.Sizes, o.Iterations = o.Sizes[1:2], 40
		if _, err := rdmabench.Run(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		seen := int(clean.Seen(op))
		for n := range 8 { // of a run, spread evenly
			plan := fault.New(1, fault.Nth(op, n*seen/8).Fail(nil))
			o.NIC = softNIC(t, plan, soft.DeviceOptions{})
			o.Local, o.Remote = host(t, o.NIC, 2*most), host(t, o.NIC, most)
			_, err := rdmabench.Run(t.Context(), o)
			var wc *rdma.WCError
			if !errors.As(err, &wc) || len(plan.Unreported(err)) > 0 {
				t.Errorf("%s %d failed: %v", op, n, err)
			}
		}
	}
}

func TestWrongBytesFailTheRun(t *testing.T) {
	for op, named := range map[rdmabench.Op]string{rdmabench.Write: soft.OpWrite, rdmabench.Read: soft.OpRead, rdmabench.Send: soft.OpSend} {
		// Every message writes the same place: the last is the one whose bytes stay, 16 before and 40 that count.
		last := map[rdmabench.Op]int{rdmabench.Write: 55, rdmabench.Read: 55, rdmabench.Send: 39}[op]
		plan := fault.New(1, fault.Nth(named, last).Corrupt())
		o := options(t, softNIC(t, plan, soft.DeviceOptions{}))
		o.Ops, o.Sizes, o.Iterations = []rdmabench.Op{op}, o.Sizes[1:2], 40
		if _, err := rdmabench.Run(t.Context(), o); !errors.Is(err, errdefs.ErrCorrupt) {
			t.Errorf("%s: %v", op, err)
		}
	}
}

func TestRunEndsWithItsContext(t *testing.T) {
	// A request that stalls is never released.
	plan := fault.New(1, fault.Nth(soft.OpSend, 20).Stall())
	o := options(t, softNIC(t, plan, soft.DeviceOptions{}))
	ctx, cancel := context.WithTimeoutCause(t.Context(), 200*time.Millisecond, errors.New("it is late"))
	defer cancel()
	if _, err := rdmabench.Run(ctx, o); err == nil || !strings.Contains(err.Error(), "it is late") {
		t.Errorf("error %v", err)
	}
}

// What a budget is too short for is left out, named and said, also what is under way; a budget in which nothing can be measured is an error.
func TestDefectBudgetOfNICsIsExceeded(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience())
	defer cancel()
	o := options(t, softNIC(t, nil, soft.DeviceOptions{}))
	o.Sizes, o.Iterations, o.Budget = []int64{64}, 50, time.Hour
	r, err := rdmabench.Run(ctx, o)
	check(t, err)
	if len(r.LeftOut) > 0 || len(r.Bandwidth) != 3 || r.Bandwidth[0].Op != rdmabench.Write || r.Latency[1].Op != rdmabench.Read {
		t.Errorf("all fits in an hour, and it left out %q: %+v", r.LeftOut, r.Bandwidth)
	}
	// A request of the second that is measured stalls.
	testkit.Grow(t, time.Second, func(budget time.Duration) error {
		plan := fault.New(1, fault.Nth(soft.OpWrite, 20).Stall())
		o = options(t, softNIC(t, plan, soft.DeviceOptions{}))
		o.Sizes, o.Iterations, o.Ops, o.Budget = []int64{64}, 50, []rdmabench.Op{rdmabench.Write, rdmabench.Send}, budget
		r, err := rdmabench.Run(ctx, o)
		if err != nil {
			return err
		}
		if len(r.LeftOut) != 1 || !strings.HasPrefix(r.LeftOut[0], "write of 64 B (given up after ") || len(r.Bandwidth) != 1 || r.Bandwidth[0].Op != rdmabench.Send {
			return fmt.Errorf("it left out %q: %+v", r.LeftOut, r.Bandwidth)
		}
		return nil
	})
	// A NIC that is busy all the time is given up as well.
	plan := fault.New(1)
	o.NIC, o.Ops, o.Iterations = softNIC(t, plan, soft.DeviceOptions{}), o.Ops[:1], rdmabench.MaxIterations
	o.Local, o.Remote, o.Budget = host(t, o.NIC, 2*most), host(t, o.NIC, most), 50*time.Millisecond
	if r, err := rdmabench.Run(ctx, o); r != nil || !errors.Is(err, errdefs.ErrInvalid) || plan.Seen(soft.OpWrite) > rdmabench.MaxIterations/2 {
		t.Errorf("%d writes in %v: %v, %v", plan.Seen(soft.OpWrite), o.Budget, r, err)
	}
	o.Iterations = 50
	o.NIC = softNIC(t, fault.New(1, fault.Nth(soft.OpWrite, 20).Stall()), soft.DeviceOptions{})
	o.Local, o.Remote, o.Budget = host(t, o.NIC, 2*most), host(t, o.NIC, most), 100*time.Millisecond
	if r, err := rdmabench.Run(ctx, o); r != nil || !errors.Is(err, errdefs.ErrInvalid) || !strings.Contains(err.Error(), "used up before anything was measured") {
		t.Errorf("nothing fits: %v, %v", r, err)
	}
}

func TestOptionsAreChecked(t *testing.T) {
	short := soft.DeviceOptions{Ports: []soft.PortOptions{{MaxMessageBytes: 4096}}}
	good := options(t, softNIC(t, nil, short))
	for name, c := range map[string]struct {
		change func(*rdmabench.Options)
		want   string
	}{
		"no NIC":             {func(o *rdmabench.Options) { o.NIC = nil }, "a NIC and memory"},
		"no bytes":           {func(o *rdmabench.Options) { o.Sizes = []int64{0} }, "0 bytes"},
		"too long":           {func(o *rdmabench.Options) { o.Sizes = []int64{1 << 31} }, "2147483648 bytes"},
		"longer than port's": {func(o *rdmabench.Options) { o.Sizes = []int64{4097} }, "longer than the 4096"},
		"longer than memory": {func(o *rdmabench.Options) { o.Sizes = []int64{most + 1} }, "need twice that"},
		"iterations":         {func(o *rdmabench.Options) { o.Iterations = -1 }, "-1 iterations"},
		"operation":          {func(o *rdmabench.Options) { o.Ops = []rdmabench.Op{"atomic"} }, `"atomic"`},
		"port":               {func(o *rdmabench.Options) { o.Connect.Port = 7 }, "port=7"},
	} {
		o := good
		o.Sizes = []int64{64}
		c.change(&o)
		if _, err := rdmabench.Run(t.Context(), o); !errors.Is(err, errdefs.ErrInvalid) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// sample is a report with figures that are easy to tell apart.
func sample() *rdmabench.Report {
	r := &rdmabench.Report{
		Format: rdmabench.Format, Provider: "soft", NIC: "soft0", Firmware: "1", Reason: "place unknown; port 1, the first that is active",
		Port: 1, MTUBytes: 4096, Local: "host-pinned", Remote: "device", Device: "a GPU", CPUs: 16, GoVersion: "go1.26",
		Date: time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC), Command: "kvlane bench rdma", TxDepth: 128, RxDepth: 512, PostList: 16,
	}
	for _, op := range rdmabench.Ops() {
		for i, n := range []int64{2, 1 << 20} {
			f := float64(i + 1)
			r.Bandwidth = append(r.Bandwidth, rdmabench.Bandwidth{Op: op, Bytes: n, Iterations: 5000, PeakMiBps: 11041.94 * f, MiBps: 10000.5 * f, Mpps: 0.176670 / f})
			r.Latency = append(r.Latency, rdmabench.Latency{
				Op: op, Bytes: n, Iterations: 1000, MinMicros: 0.83 * f, MaxMicros: 2.93 * f, TypicalMicros: 0.85 * f, MeanMicros: 0.86 * f,
				StdevMicros: 0.04, P99Micros: 0.91 * f, P999Micros: 2.9 * f,
			})
		}
	}
	return r
}

func TestText(t *testing.T) {
	presenttest.Check(t, "report", *rewrite, sample().WriteText)
	b, err := json.Marshal(sample())
	check(t, err)
	if !strings.Contains(string(b), `"provider":"soft"`) {
		t.Errorf("JSON does not say that the NIC is software: %s", b)
	}
}
