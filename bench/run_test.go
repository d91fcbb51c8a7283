package bench

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/stream"
	streamcopy "github.com/kvlane/kvlane/stream/copy"
)

var (
	engine = Contender{Path: stream.PathCopyEngine}
	kernel = Contender{Path: stream.PathKernel}
	auto   = Contender{Policy: Throughput}
)

// small returns the options of a run of a few milliseconds.
func small(who ...Contender) Options {
	return Options{
		Sizes: []int64{512, 4 << 10}, Bytes: 32 << 10, PoolBytes: 100 << 10, ReferenceBytes: 40 << 10,
		Reps: 2, Seed: 7, Contenders: who,
	}
}

func opener(dev device.Device) Opener {
	return func(c Contender) (stream.Stream, error) {
		if c.Path == stream.PathNone && c.Policy != Throughput {
			return nil, fmt.Errorf("policy %s: %w", c.Policy, errdefs.ErrNotSupported)
		}
		return streamcopy.Open(dev, streamcopy.Options{Path: c.Path})
	}
}

// run measures a simulated device with the given faults and closes it. Close fails if memory was
// not freed.
func run(t *testing.T, ctx context.Context, plan *fault.Plan, o Options) (*Report, error) {
	t.Helper()
	dev, err := sim.Open(sim.Options{MemoryBytes: 256 << 20, Faults: plan})
	if err != nil {
		t.Fatal(err)
	}
	rep, err := Run(ctx, dev, opener(dev), o)
	return rep, errors.Join(err, dev.Close())
}

func TestEveryPointIsMeasured(t *testing.T) {
	for _, form := range []Form{Lists, Pages} {
		t.Run(string(form), func(t *testing.T) {
			o := small()
			o.Form = form
			steps, total := 0, 0
			o.Progress = func(_, n int, _ string) { steps, total = steps+1, n }
			rep, err := run(t, t.Context(), nil, o)
			if err != nil {
				t.Fatal(err)
			}
			there := len(defaultContenders(false)) - len(rep.Missing)
			if want := there * len(o.Sizes) * 6; len(rep.Points) != want || there < 6 {
				t.Errorf("%d points, want %d; missing %+v", len(rep.Points), want, rep.Missing)
			}
			if len(rep.Missing) == 0 && steps != total {
				t.Errorf("%d steps were announced, %d were to come", steps, total)
			}
			for _, p := range rep.Points {
				bytes := o.Bytes
				if p.Direction == Both {
					bytes *= 2
				}
				if p.GBps <= 0 || p.LowGBps > p.GBps || p.GBps > p.HighGBps || p.Share != p.GBps/p.LargeGBps || len(p.RoundGBps) != 2 || p.Bytes != bytes || p.Reps != o.Reps || p.Blocks != p.Count {
					t.Errorf("point %+v", p)
				}
				if p.P50Micros <= 0 || p.P50Micros > p.P99Micros || p.TxMicros <= 0 || p.PostMicros <= 0 || p.PrepMicros <= 0 {
					t.Errorf("durations of point %+v", p)
				}
				if c, err := ParseContender(p.Path); err != nil || c.Path != stream.PathNone && c.Path.String() != p.Traveled {
					t.Errorf("%s traveled by %q", p.Path, p.Traveled)
				}
			}
			// Four copies next to each of two sizes and two host arrangements.
			if ref := rep.Reference; ref.ToDevice.GBps <= 0 || ref.ToHost.Samples != 16 || ref.Both.Low > ref.Both.High || !rep.Machine.Simulated {
				t.Errorf("reference %+v; machine %+v", ref, rep.Machine)
			}
		})
	}
}

// slowly runs a benchmark on a device whose copies take at least 20 us, and checks the report.
// Budget and latency grow until delays of the machine no longer matter.
func slowly(t *testing.T, o Options, check func(rep *Report) error) {
	t.Helper()
	latency := 20 * time.Microsecond
	testkit.Grow(t, o.Budget, func(d time.Duration) error {
		dev, err := sim.Open(sim.Options{LatencyPerOp: latency * (d / o.Budget), BandwidthGBps: 10})
		if err != nil {
			t.Fatal(err)
		}
		o := o
		o.Budget = d
		rep, err := Run(t.Context(), dev, opener(dev), o)
		if err := errors.Join(err, dev.Close()); err != nil {
			return err
		}
		return check(rep)
	})
}

// Without a number of repetitions the budget decides: many repetitions of fast points, and few
// short ones of slow points.
func TestBudgetIsKept(t *testing.T) {
	o := small(Contender{Baseline: OneCopyEach})
	o.Reps, o.Budget, o.Sizes, o.Counts, o.Directions = 0, time.Second, []int64{256}, []int{1, 4096}, []Direction{ToHost}
	o.Bytes, o.PoolBytes, o.ReferenceBytes, o.Layouts = 1<<20, 2<<20, 1<<20, []Layout{HostContiguous, HostScattered}
	slowly(t, o, func(rep *Report) error {
		for _, p := range rep.Points {
			switch p.Count {
			case 1:
				if p.Blocks != 1 || p.Reps < minReps {
					return fmt.Errorf("a fast point: %+v", p)
				}
			case 4096: // 80 ms of latency alone
				if p.Blocks >= p.Count || p.Blocks < 256 || p.Reps < minReps || p.Bytes != int64(p.Blocks)*p.Size {
					return fmt.Errorf("a slow point: %+v", p)
				}
			}
		}
		var b strings.Builder
		if err := rep.WriteText(&b); err != nil || !strings.Contains(b.String(), "2 of them (*) with fewer blocks than in the column's head") {
			return fmt.Errorf("the text does not report the moved bytes: %w\n%s", err, b.String())
		}
		return nil
	})
}

// One copy of each step that moves blocks is corrupted, in the first or the last repetition. The
// run must fail.
func TestWrongBytesFailTheRun(t *testing.T) {
	for who, op := range map[Contender]string{
		engine: sim.OpBatch, kernel: sim.OpLaunch, {Baseline: OneCopyEach}: sim.OpCopy, {Baseline: DriverBatch}: sim.OpBatch,
	} {
		t.Run(who.Name(), func(t *testing.T) {
			// A run without faults shows which operations belong to which step.
			clean := fault.New(1)
			var starts []int64
			dirs := []Direction{ToDevice, ToHost, Both}
			o := small(who)
			o.Sizes, o.Reps = o.Sizes[1:], 1
			o.Progress = func(int, int, string) { starts = append(starts, clean.Seen(op)) }
			if _, err := run(t, t.Context(), clean, o); err != nil {
				t.Fatal(err)
			}
			o.Progress = nil
			for i, first := range starts {
				dir, end := dirs[i%len(dirs)], clean.Seen(op)
				last := int64(-1)
				if i+1 < len(starts) {
					end = starts[i+1]
					last -= larges(op, dirs[(i+1)%len(dirs)]) // before the first round of the next point
				}
				last += end - larges(op, dir) // after the last round
				if op == sim.OpLaunch && dir != ToHost {
					last-- // launch of the check
				}
				if last <= first {
					t.Fatalf("step %d: %s moved no bytes", i, who.Name())
				}
				for _, n := range []int64{first, last} {
					if _, err := run(t, t.Context(), fault.New(1, fault.Nth(op, int(n)).Corrupt()), o); !errors.Is(err, errdefs.ErrCorrupt) {
						t.Errorf("operation %d, of step %d, was corrupted: error %v, want ErrCorrupt", n, i, err)
					}
				}
			}
		})
	}
}

// larges returns the number of operations of a sample of the large copy.
func larges(op string, dir Direction) int64 {
	switch {
	case op != sim.OpCopy:
		return 0
	case dir == Both:
		return 2
	}
	return 1
}

// Contenders of about the same speed move the same number of blocks within the budget. Slow ones
// move fewer.
func TestWhatIsComparedMovesAsMuch(t *testing.T) {
	o := small(Contender{Baseline: OneCopyEach}, engine, kernel)
	o.Reps, o.Budget, o.Sizes, o.Counts, o.Directions, o.Layouts = 0, time.Second, []int64{256}, []int{8192}, []Direction{ToHost}, []Layout{HostScattered}
	o.Bytes, o.PoolBytes, o.ReferenceBytes = 2<<20, 2<<20, 1<<20
	slowly(t, o, func(rep *Report) error {
		moved := make(map[string]int)
		for _, p := range rep.Points {
			moved[p.Path] = p.Blocks
		}
		if moved["one-copy-each"] >= 4096 || moved["one-copy-each"] < probeBlocks || moved["kernel"] != 8192 {
			return fmt.Errorf("blocks moved: %v", moved)
		}
		return nil
	})
}

// Blocks in the slots of a store are measured and checked in every form, with whole slots.
func TestSlots(t *testing.T) {
	for _, form := range []Form{Lists, Pages, PagesSummed} {
		t.Run(string(form), func(t *testing.T) {
			o := small(kernel, engine, auto, Contender{Baseline: DriverBatch})
			o.Sizes, o.Counts, o.Layouts, o.SlotBytes, o.Form, o.BatchBlocks = []int64{4 << 10, 512}, []int{3, 7}, []Layout{HostSlots, HostScattered}, 16<<10, form, 4
			if form == PagesSummed {
				o.Sizes = o.Sizes[:1]
			}
			rep, err := run(t, t.Context(), nil, o)
			if err != nil {
				t.Fatal(err)
			}
			slots := 0
			for _, p := range rep.Points {
				switch {
				case p.Layout == HostScattered:
				case p.Size != 4<<10 || p.Count != 4 || p.Blocks != 4 || p.GBps <= 0:
					t.Errorf("point %+v", p)
				default:
					slots++
				}
				if p.Form == PagesSummed && p.Path == "kernel" && !p.Summed {
					t.Errorf("no checksums: %+v", p)
				}
			}
			if slots != 4*3 {
				t.Errorf("%d points of slots", slots)
			}
			o.Contenders = []Contender{kernel}
			o.Layouts, o.Counts = o.Layouts[:1], []int{8}
			for n := range 3 {
				if _, err := run(t, t.Context(), fault.New(1, fault.Nth(sim.OpLaunch, n).Corrupt()), o); !errors.Is(err, errdefs.ErrCorrupt) {
					t.Errorf("launch %d was corrupted: %v, want ErrCorrupt", n, err)
				}
			}
		})
	}
}

// Each operation fails once. The run must report the failure and free all its memory.
func TestNoFailureGoesUnreported(t *testing.T) {
	for _, op := range []string{
		sim.OpAlloc, sim.OpAllocHost, sim.OpOpen, sim.OpCallFill, sim.OpCallLaunch, sim.OpRecord, sim.OpFill, sim.OpLaunch,
	} {
		t.Run(op, func(t *testing.T) {
			o := small(kernel)
			o.Sizes, o.Reps, o.Layouts = o.Sizes[1:], 1, []Layout{HostScattered}
			for n := 0; ; n++ {
				plan := fault.New(1, fault.Nth(op, n).Fail(nil))
				_, err := run(t, t.Context(), plan, o)
				if plan.Injected() == 0 {
					if err != nil {
						t.Fatalf("without a fault: %v", err)
					}
					if n == 0 {
						t.Fatalf("the run has no operation %s", op)
					}
					return
				}
				if left := plan.Unreported(err); len(left) != 0 {
					t.Fatalf("fault %d of %s: unreported; error %v", n, op, err)
				}
			}
		})
	}
}

func TestMissingPathIsReported(t *testing.T) {
	dev, err := sim.Open(sim.Options{})
	if err != nil {
		t.Fatal(err)
	}
	open := func(c Contender) (stream.Stream, error) {
		if c.Path == stream.PathKernel {
			return nil, fmt.Errorf("no kernels here: %w", errdefs.ErrNotSupported)
		}
		return opener(dev)(c)
	}
	o := small(kernel, auto)
	var last int
	o.Progress = func(done, total int, _ string) { last = total - done }
	rep, err := Run(t.Context(), dev, open, o)
	if err := errors.Join(err, dev.Close()); err != nil {
		t.Fatal(err)
	}
	if len(rep.Missing) != 1 || rep.Missing[0].Path != "kernel" || len(rep.Points) != 2*6 || last != 1 {
		t.Errorf("missing %+v, %d points, %d steps short", rep.Missing, len(rep.Points), last-1)
	}
	var b strings.Builder
	if err := rep.WriteText(&b); err != nil || !strings.Contains(b.String(), "not measured: kernel: no kernels here") {
		t.Errorf("text, %v:\n%s", err, b.String())
	}
}

func TestCanceledRunFreesEverything(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("enough")
	o := small()
	o.Progress = func(done, _ int, _ string) {
		if done == 3 {
			cancel(cause)
		}
	}
	if _, err := run(t, ctx, nil, o); !errors.Is(err, cause) {
		t.Errorf("error %v, want the context's cause", err)
	}
}
