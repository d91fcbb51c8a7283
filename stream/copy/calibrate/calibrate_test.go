package calibrate_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jonboulle/clockwork"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream"
	streamcopy "github.com/kvlane/kvlane/stream/copy"
	"github.com/kvlane/kvlane/stream/copy/calibrate"
	"github.com/kvlane/kvlane/stream/copy/plan"
)

func openSim(t *testing.T, o sim.Options) *sim.Device {
	t.Helper()
	dev, err := sim.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := dev.Close(); err != nil {
			t.Error(err)
		}
	})
	return dev
}

// small returns options for a calibration that a simulated device completes at once.
func small() calibrate.Options {
	return calibrate.Options{Bytes: 1 << 20, Sizes: []int64{1 << 10, 8 << 10, 64 << 10}, Budget: 50 * time.Millisecond}
}

// opener opens streams of dev as the engine does.
func opener(dev device.Device) calibrate.Opener {
	return func(path stream.Path, ctas int) (stream.Stream, error) {
		return streamcopy.Open(dev, streamcopy.Options{Path: path, CTAs: ctas})
	}
}

func TestSimulatedDevice(t *testing.T) {
	dev := openSim(t, sim.Options{})
	steps := 0
	o := small()
	o.Progress = func(done, total int, what string) {
		if done < 0 || done >= total || what == "" {
			t.Errorf("progress %d of %d: %q", done, total, what)
		}
		steps++
	}
	r, err := calibrate.Run(t.Context(), dev, opener(dev), o)
	if err != nil {
		t.Fatal(err)
	}
	if r.Profile.Source != calibrate.SourceSimulated || r.Storable() {
		t.Errorf("source %q, storable %v: want a result that cannot be stored, from a simulated device", r.Profile.Source, r.Storable())
	}
	measured := make(map[stream.Path]int)
	for _, m := range r.Profile.Models {
		if m.Points > 0 {
			measured[m.Path]++
		}
	}
	for _, p := range []stream.Path{stream.PathCopyEngine, stream.PathKernel} {
		if measured[p] == 0 {
			t.Errorf("%s was not measured", p)
		}
	}
	for _, m := range r.Missing {
		if measured[m.Path] > 0 || m.Reason == "" {
			t.Errorf("%+v is missing, and was measured %d times", m, measured[m.Path])
		}
	}
	if r.Profile.SumGBps <= 0 || r.Profile.SumGBps == plan.Default().SumGBps {
		t.Errorf("a CPU sums %v GB/s: not measured", r.Profile.SumGBps)
	}
	if steps == 0 || r.Took <= 0 || !slices.Equal(r.Profile.Sizes, o.Sizes) {
		t.Errorf("%d steps in %v, sizes %v", steps, r.Took, r.Profile.Sizes)
	}
	pl, err := plan.New(r.Profile, plan.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range []plan.Direction{plan.H2D, plan.D2H, plan.D2D, plan.Peer} {
		req := plan.Request{Dir: dir, Pieces: 100, Bytes: 100 << 10}
		can := plan.PathSet(stream.PathCopyEngine)
		if c := pl.Choose(req, can); c.Predicted <= 0 {
			t.Errorf("%s: %+v", dir, c)
		}
	}
}

// machine is a device whose streams take exactly the configured times on a fake clock.
type machine struct {
	t     *testing.T
	dev   *sim.Device
	clock *clockwork.FakeClock
	cost  func(w work) float64 // returns nanoseconds
	has   func(path stream.Path) bool
	says  func(path stream.Path) stream.Path
	fails error
	opens int
}

func newMachine(t *testing.T) *machine {
	t.Helper()
	return &machine{
		t: t, dev: openSim(t, sim.Options{}), clock: clockwork.NewFakeClock(), cost: honest,
		has:  func(stream.Path) bool { return true },
		says: func(p stream.Path) stream.Path { return p },
	}
}

func honest(w work) float64 {
	ctas, n, size := w.ctas, w.n, w.size
	switch w.path {
	case stream.PathCopyEngine:
		return 7000 + float64(n)*(400+float64(size)/54)
	case stream.PathKernel:
		return 10000 + float64(n)*(5+float64(size)/min(51, 12*float64(ctas)))
	case stream.PathStaged:
		return 30000 + float64(n)*(1+float64(size)/54)
	case stream.PathNIC:
		each := 100.0 // for each request
		if w.side == plan.Contiguous {
			each /= 16 // a request covers that many pages
		}
		return 5000 + float64(n)*(each+float64(size)/46)
	case stream.PathNone, stream.PathPosix, stream.PathURing, stream.PathCuFile, stream.PathNICSoft:
	}
	return 0
}

func (m *machine) open(path stream.Path, ctas int) (stream.Stream, error) {
	if !m.has(path) {
		return nil, fmt.Errorf("no %s: %w", path, errdefs.ErrNotSupported)
	}
	m.opens++
	return &clocked{m: m, path: path, ctas: ctas}, nil
}

func (m *machine) options() calibrate.Options {
	return calibrate.Options{Clock: m.clock, Bytes: 8 << 20, Budget: 400 * time.Millisecond}
}

// realDevice is a simulated device that does not report that it is simulated.
type realDevice struct{ device.Device }

func (d realDevice) Info() device.Info {
	i := d.Device.Info()
	i.Driver = "test"
	return i
}

func (m *machine) run(o calibrate.Options) (*calibrate.Result, error) {
	m.t.Helper()
	return calibrate.Run(m.t.Context(), realDevice{m.dev}, m.open, o)
}

type clocked struct {
	m    *machine
	path stream.Path
	ctas int
	id   uint64
}

func (s *clocked) Submit(_ context.Context, b *mem.Batch) (*stream.Ticket, error) {
	if b.Pieces() <= 256 { // longer batches are built in the same way, and would be slow to check
		if err := b.Validate(); err != nil {
			s.m.t.Errorf("a bad batch: %v", err)
		}
	}
	if s.m.fails != nil {
		return nil, s.m.fails
	}
	s.id++
	t := stream.NewTicket(s.id, nil)
	c := stream.Completion{Path: s.m.says(s.path), Reason: "test", Bytes: b.Bytes(), Pieces: b.Pieces(), Started: s.m.clock.Now()}
	s.m.clock.Advance(time.Duration(s.m.cost(s.work(b))))
	c.Finished = s.m.clock.Now()
	t.Resolve(c, nil)
	return t, nil
}

// work describes b for the cost model. The region identifies the side of the host.
func (s *clocked) work(b *mem.Batch) work {
	if b.Paged != nil {
		g := &b.Paged.Groups[0]
		w := work{path: s.path, ctas: s.ctas, n: len(g.Pairs), size: g.Planes[0].Bytes, side: plan.Contiguous}
		if b.Paged.Dir == mem.ToSlots {
			w.dir = plan.D2H
		}
		if w.n > 1 && g.Pairs[1].Slot != g.Pairs[0].Slot+1 {
			w.side = plan.Scattered
		}
		return w
	}
	w := work{path: s.path, ctas: s.ctas, n: len(b.Dst), size: b.Dst[0].Len, side: plan.Contiguous}
	host := b.Src
	switch from, to := b.Src[0].Region.Kind() == mem.KindDevice, b.Dst[0].Region.Kind() == mem.KindDevice; {
	case from && to:
		w.dir = plan.D2D
	case from:
		w.dir, host = plan.D2H, b.Dst
	}
	if w.n > 1 && host[1].Off != host[0].Off+w.size {
		w.side = plan.Scattered
	}
	return w
}

func (s *clocked) Close(context.Context) error { return nil }

// TestCalibrationFindsTheCosts calibrates a machine with known costs, using the default options,
// and compares predictions with these costs.
func TestCalibrationFindsTheCosts(t *testing.T) {
	m := newMachine(t)
	m.has = func(p stream.Path) bool { return p != stream.PathStaged }
	o := m.options()
	o.Bytes = 32 << 20
	r, err := m.run(o)
	if err != nil {
		t.Fatal(err)
	}
	if !r.Storable() || r.Profile.Source != calibrate.SourceMeasured {
		t.Errorf("the result is not storable: %q, %q", r.Loaded, r.Profile.Source)
	}
	if len(r.Missing) != 1 || r.Missing[0].Path != stream.PathStaged {
		t.Errorf("missing %+v, want the staged path, once", r.Missing)
	}
	if r.Took > 2*o.Budget {
		t.Errorf("the calibration took %v", r.Took)
	}
	if g := r.Profile.GBps[plan.H2D]; math.Abs(g-54) > 2 {
		t.Errorf("a single large copy reaches %.1f GB/s, want 54", g)
	}
	pl, err := plan.New(r.Profile, plan.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []stream.Path{stream.PathCopyEngine, stream.PathKernel} {
		for _, ctas := range []int{0, 4, 16} {
			for _, n := range []int{1, 3, 100, 10_000} {
				for _, size := range []int64{256, 4096, 30_000, 200_000} {
					got, ok := pl.Predict(plan.Request{Pieces: n, Runs: n, Bytes: int64(n) * size}, path, ctas)
					if want := honest(work{path: path, ctas: ctas, n: n, size: size}); ok && math.Abs(float64(got)/want-1) > 0.03 {
						t.Errorf("%s, %d thread blocks: %d copies of %d bytes predicted at %v, they take %v", path, ctas, n, size, got, time.Duration(want))
					}
				}
			}
		}
	}
}

// TestEveryPathOfADeviceIsMeasured checks that all paths are measured, because others would never
// be chosen.
func TestEveryPathOfADeviceIsMeasured(t *testing.T) {
	m := newMachine(t)
	r, err := m.run(m.options())
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range stream.Paths(stream.MovedByDevice) {
		if !slices.ContainsFunc(r.Profile.Models, func(m plan.Model) bool { return m.Path == p && m.Points > 0 }) {
			t.Errorf("%s was not measured", p)
		}
	}
}

func TestMedianOfWhatTimeAllows(t *testing.T) {
	m := newMachine(t)
	o := m.options()
	o.Bytes, o.Budget, o.Sizes = 16<<20, calibrate.DefaultBudget, []int64{4 << 10, 64 << 10}
	rng := rand.New(rand.NewPCG(8, 8))
	m.cost = func(w work) float64 {
		// One batch in seven is disturbed.
		if rng.IntN(7) == 0 {
			return 3 * honest(w)
		}
		return honest(w)
	}
	r, err := m.run(o)
	if err != nil {
		t.Fatal(err)
	}
	p := &r.Profile
	for _, model := range p.Models {
		if model.Points == 0 {
			continue
		}
		if model.Spread > 0.5 {
			t.Errorf("%s, %d: spread %.2f", model.Path, model.CTAs, model.Spread)
		}
		for i, got := range model.Times {
			w := work{path: model.Path, ctas: model.CTAs, n: int(p.Counts[i%len(p.Counts)]), size: p.Sizes[i/len(p.Counts)]}
			if want := honest(w); math.Abs(got/want-1) > 0.01 {
				t.Errorf("%+v: %.0f ns, want %.0f", w, got, want)
			}
		}
	}
}

// TestSomebodyCame checks that a measurement that another user of the device has disturbed is
// returned, but is not storable.
func TestSomebodyCame(t *testing.T) {
	m := newMachine(t)
	start := m.clock.Now()
	m.cost = func(w work) float64 {
		if m.clock.Since(start) > 200*time.Millisecond {
			return 2 * honest(w)
		}
		return honest(w)
	}
	r, err := m.run(m.options())
	if err != nil {
		t.Fatal(err)
	}
	if r.Loaded == "" || r.Storable() {
		t.Error("the disturbance was not detected")
	}
}

// TestUnderLoad checks that a device in use is not measured. If there is time, the calibration
// waits until it is idle.
func TestUnderLoad(t *testing.T) {
	const busy = 700 * time.Millisecond
	for name, load := range map[string]func(w work, n int) float64{
		"the link is used now and then": func(_ work, n int) float64 { return 1 + float64(n/2%2) },
		"kernels wait for multiprocessors": func(w work, _ int) float64 {
			if w.path == stream.PathKernel {
				return 40
			}
			return 1
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			start, n := m.clock.Now(), 0
			m.cost = func(w work) float64 {
				if n++; m.clock.Since(start) < busy {
					return honest(w) * load(w, n)
				}
				return honest(w)
			}
			o := m.options()
			if _, err := m.run(o); !errors.Is(err, errdefs.ErrBusy) {
				t.Errorf("error %v, want ErrBusy", err)
			}
			start = m.clock.Now()
			o.Wait = 5 * time.Second
			ctx, cancel := context.WithCancel(t.Context())
			ticked := make(chan struct{})
			go func() {
				defer close(ticked)
				for m.clock.BlockUntilContext(ctx, 1) == nil {
					m.clock.Advance(50 * time.Millisecond)
				}
			}()
			r, err := m.run(o)
			cancel()
			<-ticked
			if err != nil || !r.Storable() {
				t.Fatalf("%+v, %v after they have left", r, err)
			}
			if r.Took < busy {
				t.Errorf("the calibration took %v, of which other processes used %v", r.Took, busy)
			}
		})
	}
}

// TestLittleMemory checks that the calibration uses less memory if the default size is not
// available.
func TestLittleMemory(t *testing.T) {
	m := newMachine(t)
	m.dev = openSim(t, sim.Options{MemoryBytes: 200 << 20})
	r, err := m.run(calibrate.Options{Clock: m.clock, Budget: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	if r.Bytes != 128<<20 {
		t.Errorf("%d bytes, want 128 MiB, the most that fits by halves", r.Bytes)
	}
	m.dev = openSim(t, sim.Options{MemoryBytes: 10 << 20})
	if _, err := m.run(calibrate.Options{Clock: m.clock}); !errors.Is(err, errdefs.ErrNoMemory) {
		t.Errorf("error %v, want ErrNoMemory", err)
	}
}

func TestPathsThatGoElsewhereAreMissing(t *testing.T) {
	m := newMachine(t)
	m.says = func(p stream.Path) stream.Path {
		if p == stream.PathStaged {
			return stream.PathKernel
		}
		return p
	}
	r, err := m.run(m.options())
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Missing) != 1 || r.Missing[0].Path != stream.PathStaged || !strings.Contains(r.Missing[0].Reason, "another path") {
		t.Errorf("missing %+v", r.Missing)
	}
}

func TestFailuresAreReported(t *testing.T) {
	m := newMachine(t)
	m.fails = errors.New("the device is gone")
	if _, err := m.run(m.options()); !errors.Is(err, m.fails) {
		t.Errorf("error %v, want its cause", err)
	}
	for name, o := range map[string]calibrate.Options{
		"a negative budget":  {Budget: -1},
		"negative memory":    {Bytes: -1},
		"sizes upside down":  {Sizes: []int64{4096, 256}},
		"sizes of nothing":   {Sizes: []int64{0, 256}},
		"memory for nothing": {Bytes: 64},
		"a single count":     {Counts: []int64{1}},
		"a negative wait":    {Wait: -1},
	} {
		if _, err := m.run(o); !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("%s: error %v, want ErrInvalid", name, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	dev := openSim(t, sim.Options{})
	if _, err := calibrate.Run(ctx, dev, opener(dev), small()); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want the context's", err)
	}
}

// TestEveryFault fails operation N of the device for N = 0, 1, 2, ... Each failure must be
// reported, and no resource may be left.
func TestEveryFault(t *testing.T) {
	for _, op := range []string{sim.OpAlloc, sim.OpAllocHost, sim.OpOpen, sim.OpRecord, sim.OpWork} {
		t.Run(op, func(t *testing.T) {
			for n := range 8 {
				cause := errors.New("injected")
				faults := fault.New(1, fault.Nth(op, n).Fail(cause))
				dev := openSim(t, sim.Options{Faults: faults})
				_, err := calibrate.Run(t.Context(), dev, opener(dev), small())
				if faults.Injected() == 0 {
					return
				}
				if !errors.Is(err, cause) {
					t.Fatalf("fault %d was not reported: %v", n, err)
				}
			}
		})
	}
}
