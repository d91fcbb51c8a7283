package bench

import (
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/stream"
	streamcopy "github.com/kvlane/kvlane/stream/copy"
)

// small is a run of a few milliseconds with more than one chunk to read back and more than one batch.
func small(paths ...stream.Path) Options {
	return Options{
		Sizes: []int64{512, 4 << 10}, Bytes: 32 << 10, PoolBytes: 100 << 10, ReferenceBytes: 40 << 10, BatchBytes: 8 << 10,
		Reps: 2, Samples: 3, Seed: 7, Paths: paths,
	}
}

// run measures a simulated device with the given faults and closes it. The device complains of whatever was not freed.
func run(t *testing.T, ctx context.Context, plan *fault.Plan, o Options) (*Report, error) {
	t.Helper()
	dev, err := sim.Open(sim.Options{MemoryBytes: 64 << 20, Faults: plan})
	if err != nil {
		t.Fatal(err)
	}
	open := func(p stream.Path) (stream.Stream, error) { return streamcopy.Open(dev, streamcopy.Options{Path: p}) }
	rep, err := Run(ctx, dev, open, o)
	return rep, errors.Join(err, dev.Close())
}

func TestEveryPointIsMeasured(t *testing.T) {
	for _, paged := range []bool{false, true} {
		t.Run(fmt.Sprintf("paged=%v", paged), func(t *testing.T) {
			o := small()
			o.Paged = paged
			steps, total := 0, 0
			o.Progress = func(_, n int, _ string) { steps, total = steps+1, n }
			rep, err := run(t, t.Context(), nil, o)
			if err != nil {
				t.Fatal(err)
			}
			if want := len(defaultPaths) * len(o.Sizes) * 4; len(rep.Points) != want {
				t.Errorf("%d points, want %d", len(rep.Points), want)
			}
			if steps != total {
				t.Errorf("%d steps were announced, %d were to come", steps, total)
			}
			for _, p := range rep.Points {
				if p.GBps <= 0 || p.MinGBps > p.GBps || p.GBps > p.MaxGBps || p.Share <= 0 || p.Bytes != o.Bytes {
					t.Errorf("point %+v", p)
				}
			}
			if ref := rep.Reference; ref.ToDeviceGBps <= 0 || ref.ToHostGBps <= 0 || ref.BothGBps <= 0 {
				t.Errorf("reference %+v", ref)
			}
			for _, l := range rep.Latency {
				if l.ToDeviceP50Micros <= 0 || l.ToHostP50Micros > l.ToHostP99Micros || l.SubmitNanosPerBlock <= 0 {
					t.Errorf("latency %+v", l)
				}
			}
			if len(rep.Latency) != len(defaultPaths) || !rep.Machine.Simulated {
				t.Errorf("%d latencies; machine %+v", len(rep.Latency), rep.Machine)
			}
		})
	}
}

// One copy in each step that moves blocks has a byte flipped: whichever it is, the run must not end well.
func TestWrongBytesFailTheRun(t *testing.T) {
	for path, op := range map[stream.Path]string{
		stream.PathCopyEngine: sim.OpCopy, stream.PathCopyEngineBatch: sim.OpBatch, stream.PathKernel: sim.OpLaunch,
	} {
		t.Run(path.String(), func(t *testing.T) {
			// A run without faults shows which operations belong to which step.
			clean := fault.New(1)
			var starts []int64
			o := small(path)
			// Every byte of the pool is in a block: also what reads it back must not go wrong anywhere.
			o.Bytes, o.PoolBytes, o.Reps = o.ReferenceBytes, o.ReferenceBytes, 1
			o.Progress = func(int, int, string) { starts = append(starts, clean.Seen(op)) }
			if _, err := run(t, t.Context(), clean, o); err != nil {
				t.Fatal(err)
			}
			o.Progress = nil
			// The first step is the large copy, the last the latency; between them are the points.
			for i := 1; i < len(starts)-1; i++ {
				if starts[i] == starts[i+1] {
					t.Fatalf("step %d moved nothing by %s", i, path)
				}
				// The first operation of a step is of the repetition that does not count, the last of the last one.
				for _, n := range []int64{starts[i], starts[i+1] - 1} {
					if _, err := run(t, t.Context(), fault.New(1, fault.Nth(op, int(n)).Corrupt()), o); !errors.Is(err, errdefs.ErrCorrupt) {
						t.Errorf("operation %d, of step %d, was corrupted: error %v, want ErrCorrupt", n, i, err)
					}
				}
			}
		})
	}
}

// Whatever fails first, the run reports it and frees all that it took.
func TestNoFailureGoesUnreported(t *testing.T) {
	for _, op := range []string{
		sim.OpAlloc, sim.OpAllocHost, sim.OpOpen, sim.OpCallFill, sim.OpCallLaunch, sim.OpRecord, sim.OpFill, sim.OpLaunch,
	} {
		t.Run(op, func(t *testing.T) {
			o := small(stream.PathKernel)
			o.Sizes, o.Samples, o.Reps = o.Sizes[1:], 1, 1
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
	open := func(p stream.Path) (stream.Stream, error) {
		if p == stream.PathKernel {
			return nil, fmt.Errorf("no kernels here: %w", errdefs.ErrNotSupported)
		}
		return streamcopy.Open(dev, streamcopy.Options{Path: p})
	}
	o := small(stream.PathKernel, stream.PathNone)
	var last int
	o.Progress = func(done, total int, _ string) { last = total - done }
	rep, err := Run(t.Context(), dev, open, o)
	if err := errors.Join(err, dev.Close()); err != nil {
		t.Fatal(err)
	}
	if len(rep.Missing) != 1 || rep.Missing[0].Path != "kernel" || len(rep.Latency) != 1 || last != 1 {
		t.Errorf("missing %+v, latency %+v, %d steps short", rep.Missing, rep.Latency, last-1)
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

func TestOptionsAreChecked(t *testing.T) {
	for name, spoil := range map[string]func(*Options){
		"size of no words":           func(o *Options) { o.Sizes = []int64{4097} },
		"size zero":                  func(o *Options) { o.Sizes = []int64{0} },
		"size over repetition":       func(o *Options) { o.Sizes = []int64{64 << 10} },
		"repetition over the pool":   func(o *Options) { o.Bytes = 200 << 10 },
		"large copy over the pool":   func(o *Options) { o.ReferenceBytes = 200 << 10 },
		"negative large copy":        func(o *Options) { o.ReferenceBytes = -8 },
		"odd pool":                   func(o *Options) { o.PoolBytes = 100<<10 + 1 },
		"negative batch":             func(o *Options) { o.BatchBytes = -1 },
		"negative repetitions":       func(o *Options) { o.Reps = -1 },
		"path that copies no memory": func(o *Options) { o.Paths = []stream.Path{stream.PathPosix} },
	} {
		t.Run(name, func(t *testing.T) {
			o := small()
			spoil(&o)
			if _, err := run(t, t.Context(), nil, o); !errors.Is(err, errdefs.ErrInvalid) {
				t.Errorf("error %v, want ErrInvalid", err)
			}
		})
	}
}

func TestDefaultsFollowTheDevice(t *testing.T) {
	gpu, simulated := Options{}.withDefaults(device.Info{Driver: "cuda"}), Options{}.withDefaults(device.Info{Driver: "sim"})
	for _, o := range []*Options{&gpu, &simulated} {
		if err := o.validate(); err != nil {
			t.Error(err)
		}
	}
	if gpu.ReferenceBytes != 1<<30 || gpu.PoolBytes != 2<<30 || simulated.PoolBytes >= gpu.PoolBytes {
		t.Errorf("defaults %+v and %+v", gpu, simulated)
	}
	// What was asked for stretches what was not.
	if o := (Options{Bytes: 4 << 30}).withDefaults(device.Info{Driver: "cuda"}); o.PoolBytes != 4<<30 {
		t.Errorf("the pool has %d bytes for repetitions of 4 GiB", o.PoolBytes)
	}
}

func TestReportSaysThatItIsSimulated(t *testing.T) {
	rep, err := run(t, t.Context(), nil, small(stream.PathKernel))
	if err != nil {
		t.Fatal(err)
	}
	rep.Machine.Command = "kvlane bench copy"
	var text, table strings.Builder
	if err := errors.Join(rep.WriteText(&text), rep.WriteCSV(&table)); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"SIMULATED", "command    kvlane bench copy", "| kernel", "| 512 B", "| 4 KiB", "large copy 40 KiB:"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("the text lacks %q:\n%s", want, text.String())
		}
	}
	rows, err := csv.NewReader(strings.NewReader(table.String())).ReadAll()
	if err != nil || len(rows) != 1+2*4 || rows[1][1] != "true" {
		t.Errorf("CSV of %d rows, %v: %v", len(rows), err, rows)
	}
}

func TestPatternKnowsItsPlace(t *testing.T) {
	b := make([]byte, 64)
	writePattern(b, hostTag, 128)
	if err := checkPattern(b, hostTag, 128); err != nil {
		t.Error(err)
	}
	for name, err := range map[string]error{
		"another place":  checkPattern(b, hostTag, 136),
		"another source": checkPattern(b, devTag, 128),
	} {
		if !errors.Is(err, errdefs.ErrCorrupt) {
			t.Errorf("%s: %v, want ErrCorrupt", name, err)
		}
	}
}

func TestMedian(t *testing.T) {
	for _, c := range []struct {
		v    []float64
		want float64
	}{{nil, 0}, {[]float64{3}, 3}, {[]float64{9, 1, 5}, 5}, {[]float64{4, 1, 3, 2}, 2.5}} {
		if got := median(c.v); got != c.want {
			t.Errorf("median of %v is %v, want %v", c.v, got, c.want)
		}
	}
}
