package calibrate_test

import (
	"context"
	"errors"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream"
	"github.com/kvlane/kvlane/stream/copy/calibrate"
	"github.com/kvlane/kvlane/stream/copy/plan"
)

// announced is a NIC that records registrations of memory.
type announced struct {
	regions                    []*mem.Region
	registerErr, unregisterErr error
	taken                      int           // number of calls of Unregister
	kept                       []*mem.Region // regions that Unregister failed to release
}

func (a *announced) nic() *calibrate.NIC { return &calibrate.NIC{Path: stream.PathNIC, Memory: a} }

// Register implements measure.Memory.
func (a *announced) Register(regions ...*mem.Region) error {
	if a.registerErr == nil {
		a.regions = append(a.regions, regions...)
	}
	return a.registerErr
}

// Unregister implements measure.Memory.
func (a *announced) Unregister(_ context.Context, regions ...*mem.Region) error {
	a.taken++
	if a.unregisterErr != nil {
		a.kept = regions
	}
	a.regions = slices.DeleteFunc(a.regions, func(r *mem.Region) bool { return slices.Contains(regions, r) })
	return a.unregisterErr
}

// TestMeasuresANIC checks that a NIC is measured like the device's paths, for both host
// arrangements, and that the planner uses it for the batches for which it is the fastest.
func TestMeasuresANIC(t *testing.T) {
	m := newMachine(t)
	m.has = func(p stream.Path) bool {
		return p == stream.PathNIC || p == stream.PathCopyEngine
	}
	a := &announced{}
	o := m.options()
	o.Bytes, o.NIC = 32<<20, a.nic()
	r, err := m.run(o)
	if err != nil {
		t.Fatal(err)
	}
	if a.taken != 1 || len(a.regions) != 0 {
		t.Errorf("memory was taken back %d times, and %d regions are left", a.taken, len(a.regions))
	}
	pl, err := plan.New(r.Profile, plan.Options{})
	if err != nil {
		t.Fatal(err)
	}
	can := plan.PathSet(stream.PathNIC, stream.PathCopyEngine)
	chosen := make(map[stream.Path]int)
	for _, dir := range []plan.Direction{plan.H2D, plan.D2H} {
		for side, hostRuns := range map[plan.Side]int{plan.Contiguous: 1, plan.Scattered: 0} {
			for _, n := range []int{1, 3, 100, 10_000} {
				for _, size := range []int64{256, 4096, 30_000, 1 << 20} {
					q := plan.Request{Dir: dir, Pieces: n, Runs: n, HostRuns: hostRuns, Bytes: int64(n) * size}
					truth := func(p stream.Path) float64 { return honest(work{path: p, dir: dir, side: side, n: n, size: size}) }
					got, ok := pl.Predict(q, stream.PathNIC, 0)
					if want := truth(stream.PathNIC); n > 1 && (!ok || math.Abs(float64(got)/want-1) > 0.03) {
						t.Errorf("%d copies of %d bytes %s, host %s: predicted at %v, they take %v", n, size, dir, side, got, time.Duration(want))
					}
					c := pl.Choose(q, can)
					chosen[c.Path]++
					best := min(truth(stream.PathNIC), truth(stream.PathCopyEngine))
					if n > 1 && truth(c.Path) > 1.06*best {
						t.Errorf("%d copies of %d bytes %s, host %s: %s takes %.0f ns, the best %.0f", n, size, dir, side, c.Path, truth(c.Path), best)
					}
				}
			}
		}
	}
	if chosen[stream.PathNIC] == 0 || chosen[stream.PathCopyEngine] == 0 {
		t.Errorf("paths chosen: %v", chosen)
	}
}

// TestNICThatCannotBeMeasured checks failures of a NIC. If it does not support the memory, it is
// left out. Other failures are reported. Memory that it does not release is not freed.
func TestNICThatCannotBeMeasured(t *testing.T) {
	m := newMachine(t)
	a := &announced{registerErr: errdefs.ErrNotSupported}
	o := m.options()
	o.NIC = a.nic()
	r, err := m.run(o)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(r.Missing, func(m calibrate.Missing) bool { return m.Path == stream.PathNIC }) || a.taken != 1 { // it may have kept a part of the memory
		t.Errorf("missing: %+v; taken back %d times", r.Missing, a.taken)
	}
	for name, a := range map[string]*announced{
		"register":   {registerErr: errdefs.ErrNoMemory},
		"unregister": {unregisterErr: errdefs.ErrBusy},
	} {
		o.NIC = a.nic()
		_, err := m.run(o)
		if a.registerErr != nil && !errors.Is(err, a.registerErr) || a.unregisterErr != nil && !errors.Is(err, a.unregisterErr) {
			t.Errorf("%s: %v", name, err)
		}
		if kept := a.unregisterErr != nil; (len(a.kept) == 2) != kept {
			t.Errorf("%s: %d regions kept", name, len(a.kept))
		}
		for _, r := range a.kept {
			if err := m.dev.Free(r); err != nil {
				t.Errorf("%s: memory that is still registered was freed: %v", name, err)
			}
		}
	}
}
