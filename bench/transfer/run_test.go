package transfer_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvlane/kvlane/bench/transfer"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/present/presenttest"
	"github.com/kvlane/kvlane/internal/sys/hostmem"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/transfer/mooncake"
)

var rewrite = flag.Bool("rewrite", false, "rewrite the golden files")

func TestMain(m *testing.M) { testkit.Main(m) }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// copying is a driver whose target is memory of this process.
type copying struct {
	local, remote *mem.Region
	batches       atomic.Int64
	bytes         atomic.Int64
	wrong         bool  // writes wrong bytes
	fails         error // error of every batch after the first few
}

func newCopying(t *testing.T, bytes int64) *copying {
	t.Helper()
	d := new(copying)
	for _, r := range []**mem.Region{&d.local, &d.remote} {
		b, err := hostmem.Alloc(bytes)
		must(t, err)
		t.Cleanup(func() { must(t, hostmem.Free(b)) })
		*r, err = hostmem.Region(b)
		must(t, err)
	}
	return d
}

func (d *copying) Protocol() string               { return "copy" }
func (d *copying) Target() string                 { return "here" }
func (d *copying) Local() transfer.Memory         { return transfer.Host{Region: d.local} }
func (d *copying) Remote() int64                  { return d.remote.Len() }
func (d *copying) Wait(ctx context.Context) error { return ctx.Err() }
func (d *copying) Submit(_ context.Context, op transfer.Op, blocks []transfer.Block) (transfer.Pending, error) {
	if d.batches.Add(1) > 20 && d.fails != nil {
		return nil, d.fails
	}
	for _, b := range blocks {
		here, there := d.local.Bytes()[b.Local:][:b.Length], d.remote.Bytes()[b.Remote:][:b.Length]
		if op == transfer.Write {
			here, there = there, here
		}
		d.bytes.Add(int64(copy(here, there)))
		if d.wrong {
			here[len(here)-1]++
		}
	}
	return d, nil
}

// Every point has the requested properties and consistent figures.
func TestRun(t *testing.T) {
	for _, op := range []transfer.Op{transfer.Read, transfer.Write} {
		for _, check := range []bool{false, true} {
			d := newCopying(t, 1<<20)
			var reported []string
			r, err := transfer.Run(t.Context(), transfer.Options{
				Driver: d, Op: op, BlockBytes: []int64{100, 4096}, Batches: []int{1, 16}, Threads: 3, Duration: 2 * time.Millisecond, Check: check,
				Progress: func(done, total int, what string) { reported = append(reported, what) },
			})
			must(t, err)
			if len(r.Points) != 4 || len(reported) != 5 || r.Op != op || r.Checked != check {
				t.Fatalf("%+v", r)
			}
			for _, p := range r.Points {
				if p.Batches < 3 || p.Bytes != p.BlockBytes*int64(p.Blocks*p.Batches) || p.Seconds < 0.002 || p.GBps <= 0 || p.TxP99Micros < 0 || p.BlockMicros <= 0 {
					t.Errorf("%+v", p)
				}
			}
		}
	}
}

// slow is a driver whose batches take a while, and end early if they are canceled.
type slow struct {
	*copying
	takes time.Duration
}

func (d slow) Submit(ctx context.Context, op transfer.Op, blocks []transfer.Block) (transfer.Pending, error) {
	select {
	case <-time.After(d.takes * time.Duration(len(blocks))):
		return d.copying.Submit(ctx, op, blocks)
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// stuck is a driver whose third batch never ends.
type stuck struct{ *copying }

func (d stuck) Submit(ctx context.Context, op transfer.Op, blocks []transfer.Block) (transfer.Pending, error) {
	if d.batches.Load() < 2 {
		return d.copying.Submit(ctx, op, blocks)
	}
	<-ctx.Done()
	return nil, context.Cause(ctx)
}

// If the budget is short, points are measured for a shorter time. Points that do not fit are left
// out and named. A budget that is too short for any measurement is an error. The report compares
// NVLink's counters with the moved bytes, which exceed the counted ones if batches are checked.
func TestNVLinkCounters(t *testing.T) {
	for _, check := range []bool{false, true} {
		for _, op := range []transfer.Op{transfer.Read, transfer.Write} {
			d := newCopying(t, 1<<20)
			o := transfer.Options{
				Driver: d, Op: op, BlockBytes: []int64{4096}, Batches: []int{4}, Threads: 2, Duration: time.Millisecond, Check: check,
				Links: func() (int64, error) { return 1<<40 + d.bytes.Load(), nil },
			}
			r, err := transfer.Run(t.Context(), o)
			must(t, err)
			if p := r.Points[0]; p.NVLinkBytes != p.MovedBytes || p.MovedBytes < p.Bytes || (p.MovedBytes > p.Bytes) != (check && op == transfer.Write) {
				t.Errorf("%s, checked %v: %d bytes, %d moved, %d by NVLink", op, check, p.Bytes, p.MovedBytes, p.NVLinkBytes)
			}
			var b bytes.Buffer
			must(t, r.WriteText(&b))
			if !strings.Contains(b.String(), "saw 100.0 to 100.0% of the bytes") {
				t.Errorf("the report lacks the line on NVLink:\n%s", &b)
			}
			o.Links = func() (int64, error) { return 0, errdefs.ErrNotSupported }
			r, err = transfer.Run(t.Context(), o)
			must(t, err)
			if p := r.Points[0]; p.NVLinkBytes != 0 || p.MovedBytes != 0 {
				t.Errorf("counters that cannot be read: %+v", p)
			}
		}
	}
}

func TestDefectBudgetOfTransfersIsExceeded(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience())
	defer cancel()
	var notices []string
	d := newCopying(t, 1<<20)
	o := transfer.Options{
		Driver: d, BlockBytes: []int64{100, 4096}, Batches: []int{16, 1}, Threads: 2, Duration: time.Hour,
		Notice: func(text string) { notices = append(notices, text) },
	}
	var r *transfer.Report
	within := func(fail func() error) {
		testkit.Grow(t, time.Second, func(budget time.Duration) (err error) {
			o.Budget = budget
			if _, is := o.Driver.(slow); is { // a large batch takes ten times the budget
				o.Driver = slow{d, budget / 100}
			}
			if _, is := o.Driver.(stuck); is {
				o.Driver = stuck{newCopying(t, 1<<20)}
			}
			if r, err = transfer.Run(ctx, o); err != nil {
				return err
			}
			return fail()
		})
	}
	within(func() error {
		if len(r.Points) != 4 || len(r.LeftOut) != 0 || r.BudgetSeconds != o.Budget.Seconds() || r.Points[0].Blocks != 16 || r.Points[1].Blocks != 1 || r.Points[3].BlockBytes != 4096 {
			return fmt.Errorf("all fit, and it left out %q, %q: %+v", r.LeftOut, notices, r)
		}
		return nil
	})
	// The batches of few blocks fit into the budget. The large one, which is measured last, does
	// not.
	o.Driver, o.Batches, o.Op = slow{}, []int{1, 1 << 10, 2, 3}, transfer.Write
	o.BlockBytes, o.Threads = []int64{100}, 1
	within(func() error {
		if len(r.LeftOut) != 1 || !strings.HasPrefix(r.LeftOut[0], "write of 1024 x 100 B (given up after ") || len(r.Points) != 3 {
			return fmt.Errorf("the report left out %q: %+v", r.LeftOut, r.Points)
		}
		return nil
	})
	// The measured time of the only point counts, and not the batch that was in progress.
	o.Driver, o.Batches = stuck{}, []int{20}
	within(func() error {
		if len(r.Points) != 1 || r.Points[0].Batches != 1 || r.Points[0].GivenUp != 1 {
			return fmt.Errorf("two batches, one of which never ends: %+v", r.Points)
		}
		return nil
	})
	var text strings.Builder
	if must(t, r.WriteText(&text)); !strings.Contains(text.String(), "cancelled at the end") {
		t.Errorf("the report lacks the batch that was given up:\n%s", &text)
	}
	o.Driver, o.Batches, o.Budget = slow{d, 20 * time.Millisecond}, []int{1 << 10}, 100*time.Millisecond
	if r, err := transfer.Run(ctx, o); r != nil || !errors.Is(err, errdefs.ErrInvalid) || !strings.Contains(err.Error(), "used up before the first measurement") {
		t.Errorf("a budget too small for any measurement: %v, %v", r, err)
	}
}

// An interrupted run reports its measurements so far, or an error if there are none.
func TestDefectInterruptedTransfersReportNothing(t *testing.T) {
	for _, after := range []int{0, 2} {
		ctx, cancel := context.WithCancelCause(t.Context())
		why := errors.New("interrupted by the user")
		r, err := transfer.Run(ctx, transfer.Options{
			Driver: newCopying(t, 1<<20), Batches: []int{1, 2, 3}, Threads: 1, Duration: time.Millisecond,
			Progress: func(done, total int, _ string) {
				if done == after {
					cancel(why)
				}
			},
		})
		if !errors.Is(err, why) || (r == nil) != (after == 0) || r != nil && (r.Incomplete == "" || len(r.Points) != after) {
			t.Errorf("after %d: %v, %+v", after, err, r)
		}
	}
}

// A run ends with an error if bytes are wrong, a batch fails, memory is too small or its context
// ends.
func TestRunFails(t *testing.T) {
	failure := errors.New("cable cut")
	for name, c := range map[string]struct {
		change func(*copying, *transfer.Options)
		want   error
	}{
		"wrong bytes read":    {func(d *copying, o *transfer.Options) { d.wrong = true }, errdefs.ErrCorrupt},
		"wrong bytes written": {func(d *copying, o *transfer.Options) { d.wrong, o.Op = true, transfer.Write }, errdefs.ErrCorrupt},
		"a batch":             {func(d *copying, o *transfer.Options) { d.fails = failure }, failure},
		"too large":           {func(d *copying, o *transfer.Options) { o.BlockBytes = []int64{1 << 20} }, errdefs.ErrInvalid},
		"no room to check":    {func(d *copying, o *transfer.Options) { o.Op, o.BlockBytes = transfer.Write, []int64{12 << 10} }, errdefs.ErrInvalid},
		"no operation":        {func(d *copying, o *transfer.Options) { o.Op = "erase" }, errdefs.ErrInvalid},
		"no block":            {func(d *copying, o *transfer.Options) { o.BlockBytes = []int64{0} }, errdefs.ErrInvalid},
		"a sum that is small": {func(d *copying, o *transfer.Options) {
			o.BlockBytes, o.Batches, o.Threads = []int64{1 << 40}, []int{1 << 20}, 1024
		}, errdefs.ErrInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			d := newCopying(t, 1<<20)
			o := transfer.Options{Driver: d, BlockBytes: []int64{4096}, Batches: []int{16}, Threads: 4, Duration: time.Hour, Check: true}
			c.change(d, &o)
			if r, err := transfer.Run(t.Context(), o); !errors.Is(err, c.want) || r != nil {
				t.Errorf("%v, want %v", err, c.want)
			}
		})
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := transfer.Run(ctx, transfer.Options{Driver: newCopying(t, 1<<20), Threads: 2, Batches: []int{2}, Duration: time.Hour, Op: transfer.Write}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("with a deadline: %v", err)
	}
}

// The driver of Mooncake's protocol works over sockets, and every byte is checked.
func TestMooncake(t *testing.T) {
	there := newCopying(t, 8<<20)
	m := mooncake.NewRegions(nil)
	must(t, m.Add("cpu:0", there.remote))
	s, err := mooncake.Serve(t.Context(), mooncake.ServerOptions{Name: "127.0.0.1:0", Memory: m})
	must(t, err)
	defer func() { must(t, s.Close(context.WithoutCancel(t.Context()))) }()
	dir, err := mooncake.OpenDirectory(mooncake.P2PHandshake, "")
	must(t, err)
	d, err := transfer.OpenMooncake(t.Context(), transfer.MooncakeOptions{Directory: dir, Segment: s.Segment().Name, LocalBytes: 16 << 20})
	must(t, err)
	defer func() { must(t, d.Close()) }()
	for _, op := range []transfer.Op{transfer.Read, transfer.Write} {
		r, err := transfer.Run(t.Context(), transfer.Options{Driver: d, Op: op, BlockBytes: []int64{4096, 1 << 20}, Batches: []int{4}, Threads: 2, Duration: 20 * time.Millisecond, Check: true})
		must(t, err)
		if r.Protocol != "mooncake, tcp version 2" || r.Target != s.Segment().Name {
			t.Errorf("%+v", r)
		}
	}
	if _, err := transfer.OpenMooncake(t.Context(), transfer.MooncakeOptions{Directory: dir, Segment: "nobody", LocalBytes: 4096}); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("an invalid segment: %v", err)
	}
}

// The forms of the report, with fixed figures.
func TestReport(t *testing.T) {
	r := &transfer.Report{
		Format: transfer.Format, Protocol: "mooncake, tcp version 2", Target: "127.0.0.1:15995", Op: transfer.Write, Threads: 12, Checked: true, CPUs: 2,
		GoVersion: "go1.26", Date: time.Date(2026, 11, 23, 1, 0, 0, 0, time.UTC), Command: "kvlane bench transfer",
		Points: []transfer.Point{
			{BlockBytes: 65536, Blocks: 128, Batches: 10911, Bytes: 10911 << 23, Seconds: 3, GBps: 30.5, BlockMicros: 2.5, PrepMicros: 1, PrepP99Micros: 2, PostMicros: 3, PostP99Micros: 4, TxMicros: 5, TxP99Micros: 6},
			{BlockBytes: 1 << 20, Blocks: 8, Batches: 325, Bytes: 325 << 23, Seconds: 3.01, GBps: 0.9057},
		},
	}
	presenttest.Check(t, "report", *rewrite, r.WriteText)
	var nixl bytes.Buffer
	must(t, r.WriteNIXL(&nixl))
	file := filepath.Join("testdata", "nixl.txt")
	if *rewrite {
		must(t, os.WriteFile(file, nixl.Bytes(), 0o644))
	}
	want, err := os.ReadFile(file)
	must(t, err)
	if nixl.String() != string(want) {
		t.Errorf("%s differs; go test -rewrite makes it anew:\n%s", file, &nixl)
	}
	text, err := json.Marshal(r)
	must(t, err)
	var back transfer.Report
	must(t, json.Unmarshal(text, &back))
	if !slices.Equal(back.Points, r.Points) {
		t.Error("JSON loses figures")
	}
}
