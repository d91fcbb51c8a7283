package request

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvlane/kvlane"
	"github.com/kvlane/kvlane/bench"
	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/errdefs"
)

// tiny returns the options of a run that takes a moment.
func tiny() Options {
	return Options{
		Engine: kvlane.Config{Device: kvlane.DeviceConfig{Driver: kvlane.Sim}}, Blocks: []int{1, 3}, Requests: []int{1, 2}, Bytes: 2 << 20, LargeBytes: 64 << 10, Budget: time.Minute, Seed: 1,
		rounds: minRounds,
	}
}

// ticking returns a clock that advances by a step each time it is read.
func ticking(at time.Time, step time.Duration) func() time.Time {
	return func() time.Time {
		at = at.Add(step)
		return at
	}
}

// Measurements for which the budget is too short are left out and named, and the run exceeds the
// budget by at most a fifth.
func TestDefectBudgetOfRequestsIsExceeded(t *testing.T) {
	o := tiny()
	begin := time.Now()
	o.Blocks, o.clock = []int{1, 2, 3, 4}, ticking(begin, 400*time.Millisecond)
	var notices []string
	o.Notice = func(text string) { notices = append(notices, text) }
	r, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if took := o.clock().Sub(begin); took > o.Budget*6/5 || len(r.LeftOut) == 0 || len(r.Points) != 6*(8-len(r.LeftOut)) || len(notices) != 1 {
		t.Errorf("a budget of %v lasted %v; %d points; left out: %q; notices: %q", o.Budget, took, len(r.Points), r.LeftOut, notices)
	}
	o.clock = ticking(begin, time.Minute)
	if _, err := Run(t.Context(), o); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("a budget too small for any measurement: %v", err)
	}
}

func TestRunMeasuresEveryPlace(t *testing.T) {
	o := tiny()
	o.Blocks = append(o.Blocks, 100)
	steps := 0
	o.Progress = func(done, total int, what string) {
		if done != steps || total != 4 || what == "" {
			t.Errorf("step %d of %d: %q", done, total, what)
		}
		steps++
	}
	r, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Points) != 4*3*2 || steps != 4 || len(r.LeftOut) != 2 || !r.Machine.Simulated || r.Setup.LoadPolicy != "balanced" || r.Setup.DumpPolicy != "background" || r.Reference.Both.Samples < 4*minRounds {
		t.Errorf("%d points, %d steps, left out %q, reference %+v", len(r.Points), steps, r.LeftOut, r.Reference)
	}
	for i := range r.Points {
		p := &r.Points[i]
		inconsistent := p.GBps <= 0 || p.LowGBps > p.GBps || p.HighGBps < p.GBps || p.PercentOfC <= 0 || p.RawGBps <= 0 || p.P50Micros <= 0 || p.P99Micros < p.P50Micros ||
			p.Reps < minRounds || p.CPUMicrosPerBlock <= 0 || p.AllocsPerBlock <= 0 || p.BlockBytes != 256<<10 || p.PieceBytes != 4096 || p.Path == ""
		inconsistent = inconsistent || (p.Work != Load) != (p.DurableP50Micros > 0) || (p.Work == Both) != (p.DumpP50Micros > 0) || (p.Work != Dump) != (p.Hits == InCache)
		inconsistent = inconsistent || (p.Work == Both) != (p.LoadsOverAlone > 0) || (p.Requests > 1) != (p.SlowestOverFair > 0)
		inconsistent = inconsistent || p.Requests > 1 && p.SlowestOverFair < 0.99*p.LargeGBps/p.GBps // the slowest request ends when all have ended
		inconsistent = inconsistent || (p.Layerwise && p.Work != Dump) != (len(p.LayersMicros) == 32)
		inconsistent = inconsistent || (p.Work != Dump) != (p.LeasedMicros > 0) || p.BegunMicros < p.LeasedMicros || p.BegunMicros > p.P50Micros
		if inconsistent {
			t.Errorf("point %+v", p)
		}
		for k := 1; k < len(p.LayersMicros); k++ {
			if p.LayersMicros[k] < p.LayersMicros[k-1] {
				t.Errorf("%s: layer %d arrived before layer %d", p.Place, k, k-1)
			}
		}
	}
}

func TestRunFindsBlocksInFiles(t *testing.T) {
	o := tiny()
	o.Dir = t.TempDir()
	o.Geometries, o.Blocks, o.Requests, o.Bytes = []string{"page-of-layers"}, []int{1}, []int{2}, 32<<20
	o.Hits = []Hits{InCache, InPageCache, OnDisk}
	r, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	found := map[Hits]int{}
	for i := range r.Points {
		found[r.Points[i].Hits]++
	}
	// If the file system does not drop its page cache on request, the report mentions it.
	dropped := found[OnDisk] == 2 || found[OnDisk] == 0 && len(r.LeftOut) == 2 && strings.Contains(r.LeftOut[0], "disk")
	if found[InCache] != 4 || found[InPageCache] != 2 || found[""] != 2 || !dropped {
		t.Errorf("points by hits %v, left out %q", found, r.LeftOut)
	}
	if left, err := os.ReadDir(o.Dir); err != nil || len(left) > 0 {
		t.Errorf("%v is left in the directory, %v", left, err)
	}
}

// With direct storage, loads of the same files are measured directly, through pinned memory, and
// without a store.
func TestRunComparesDirectWithPinned(t *testing.T) {
	for _, pipeline := range []string{"file", "cache|log"} {
		o := tiny()
		o.Work, o.Forms, o.Blocks, o.Requests = []Work{Load}, []Form{Whole}, []int{2}, []int{1}
		o.Hits, o.Dir = []Hits{InPageCache}, t.TempDir()
		o.Engine.Store.Pipeline, o.Engine.Store.Direct = pipeline, kvlane.DirectRequire
		o.Engine.Device.Sim.Storage = sim.StorageModel{Aligned: true}
		r, err := Run(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		var by []By
		for i := range r.Points {
			p := &r.Points[i]
			if by = append(by, p.By); (p.By == Direct) != (p.Path == "cufile") || (p.By == Raw) != (p.Path == "pread") || p.GBps <= 0 {
				t.Errorf("point %+v", p)
			}
		}
		if !slices.Equal(by, []By{Direct, Pinned, Raw}) {
			t.Errorf("%s: points by %v, left out %q", pipeline, by, r.LeftOut)
		}
	}
}

// A device that copies nothing leaves every page unchanged. The run must detect that.
func TestWrongBytesFailTheRun(t *testing.T) {
	for _, w := range []Work{Load, Dump, Both} {
		o := tiny()
		o.Work = []Work{w}
		o.Open = func(ctx context.Context, c kvlane.Config) (*kvlane.Engine, error) {
			c.Device.Sim.Still = true // the run does not know that
			return kvlane.Open(ctx, c)
		}
		if _, err := Run(t.Context(), o); !errors.Is(err, errdefs.ErrCorrupt) || !strings.Contains(err.Error(), "wrong bytes") {
			t.Errorf("%s: %v", w, err)
		}
	}
}

func TestStillRunVerifiesNothing(t *testing.T) {
	o := tiny()
	o.Engine.Device.Sim.Still = true
	r, err := Run(t.Context(), o)
	if err != nil || !r.Setup.Still || len(r.Points) != 4*3*2 {
		t.Fatalf("%+v, %v", r, err)
	}
}

func TestRunEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("enough")
	o := tiny()
	o.Progress = func(done, _ int, _ string) {
		if done == 1 {
			cancel(why)
		}
	}
	r, err := Run(ctx, o)
	if !errors.Is(err, why) || r == nil || r.Incomplete != bench.Interrupted || len(r.Points) != 6 || r.Reference.ToDevice.Samples == 0 {
		t.Errorf("%v, want %v; %+v", err, why, r)
	}
}

// A request of a model with several page groups has blocks of all groups, from every place.
func TestRunOfSeveralPageGroups(t *testing.T) {
	o := tiny()
	o.Geometries, o.Blocks, o.Bytes = []string{"hybrid"}, []int{1}, 8<<20
	o.Hits, o.Dir = []Hits{InCache, InPageCache}, t.TempDir()
	r, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Points) == 0 || len(r.LeftOut) != 0 {
		t.Errorf("%d points, left out %q", len(r.Points), r.LeftOut)
	}
	for i := range r.Points {
		p := &r.Points[i]
		if p.BlockBytes != 24*32<<10+8*64<<10+8*128<<10 || p.PieceBytes != 16<<10 || p.Layerwise && p.Work == Load && len(p.LayersMicros) != 40 {
			t.Errorf("%s: blocks of %d bytes in pieces of %d, %d layers", p.Place, p.BlockBytes, p.PieceBytes, len(p.LayersMicros))
		}
	}
}
