package request

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/kvlane/kvlane"
	"github.com/kvlane/kvlane/bench"
	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
)

// withModel is a run of loads by layers alone, with a model's layers of a millisecond. Every operation of the device takes a tenth of that.
func withModel() Options {
	o := tiny()
	o.Requests, o.Work, o.Forms, o.ModelLayers = []int{1}, []Work{Load}, []Form{Layers}, []time.Duration{time.Millisecond}
	o.Engine.Device.Sim.LatencyPerOp = 100 * time.Microsecond
	return o
}

func TestModelBehindLoads(t *testing.T) {
	o := withModel()
	steps, total := 0, 0
	o.Progress = func(_, n int, _ string) { steps, total = steps+1, n }
	r, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Models) != 2 || len(r.Points) != 2 || steps != 4 || total != 4 {
		t.Fatalf("%d points and %d beside a model in %d of %d steps", len(r.Points), len(r.Models), steps, total)
	}
	for i, p := range r.Models {
		var parts int
		if _, err := fmt.Sscanf(p.Layer, "%d fills of", &parts); err != nil {
			t.Fatalf("a layer's work is %q: %v", p.Layer, err)
		}
		least := float64(32*parts) * 100 // us, of the fills' latency
		if p.Blocks != o.Blocks[i] || p.Layers != 32 || p.Bytes != int64(p.Blocks)<<18 || p.Reps < minRounds || p.LoadMicros <= 0 || p.WorkMicros < least ||
			p.P50Micros < least || p.P99Micros < p.P50Micros || p.GBps <= 0 || p.HighGBps < p.GBps || p.LowGBps > p.GBps {
			t.Errorf("point %+v, and the work takes %v us at least", p, least)
		}
		if want := max(p.LoadMicros, p.WorkMicros) + p.WorkMicros/32; math.Abs(p.IdealMicros-want) > 1 || math.Abs(p.ExcessPercent-100*(p.P50Micros/want-1)) > 0.1 {
			t.Errorf("the least time is %v and the excess %v%%, want %v", p.IdealMicros, p.ExcessPercent, want)
		}
		// On a machine that is busy with something else no work may come near enough.
		said := strings.Contains(strings.Join(r.Notes, "\n"), "a model's layers of 1ms take")
		if off := math.Abs(p.LayerMicros/p.AskedMicros - 1); p.AskedMicros != 1000 || (off > tolerance) != said {
			t.Errorf("a layer of %v us takes %v, notes %q", p.AskedMicros, p.LayerMicros, r.Notes)
		}
	}
}

// Layers of two geometries, one with several page groups, are found once.
func TestModelOfSeveralGeometries(t *testing.T) {
	o := withModel()
	o.Geometries, o.Blocks, o.Bytes = []string{"page-of-layers", "hybrid"}, []int{1}, 16<<20
	o.Engine.Device.Sim.LatencyPerOp, o.ModelLayers = 0, []time.Duration{100 * time.Microsecond}
	r, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Models) != 2 || r.Models[0].Layers != 4 || r.Models[1].Layers != 40 || r.Models[0].Layer != r.Models[1].Layer {
		t.Errorf("%+v", r.Models)
	}
}

// broken is a model whose work cannot be enqueued any more after some.
type broken struct {
	Model
	left int
}

var errBroken = errors.New("no more work")

func (b *broken) Enqueue(n int) error {
	if b.left -= n; b.left < 0 {
		return errBroken
	}
	return b.Model.Enqueue(n)
}

// openRig opens a rig for one block of loads.
func openRig(t *testing.T, o *Options) *rig {
	t.Helper()
	g, err := GeometryByName(o.Geometries[0])
	if err != nil {
		t.Fatal(err)
	}
	r, err := newRig(t.Context(), o, g, 1)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// However many layers a model gets to, the request ends with its error, and leaves nothing behind.
func TestModelThatBreaks(t *testing.T) {
	o := withModel().withDefaults()
	rig := openRig(t, &o)
	fills, err := OpenFills(t.Context(), rig.engine.Device())
	if err != nil {
		t.Fatal(err)
	}
	m := &model{shards: 32, layer: layer{parts: 2}}
	if m.stream, err = rig.engine.AdoptStream(fills.Handle()); err != nil {
		t.Fatal(err)
	}
	g := &group{rig: rig, blocks: 1, requests: 1}
	l := g.lanes(Place{Work: Load, Layerwise: true, Hits: InCache})[0]
	l.model, l.arrived = m, nil
	for _, left := range []int{0, 2, 33, 63, 64} {
		m.work = &broken{fills, left}
		if err := l.run(t.Context(), time.Now()); errors.Is(err, errBroken) != (left < 64) || left == 64 && err != nil {
			t.Errorf("after %d fills: %v", left, err)
		}
	}
	if err := errors.Join(fills.Close(), rig.close()); err != nil {
		t.Error(err)
	}
	o.OpenModel = func(context.Context, device.Device) (Model, error) { return nil, errBroken }
	if _, err := Run(t.Context(), o); !errors.Is(err, errBroken) {
		t.Error(err)
	}
}

// What a model has computed on is compared as every load is.
func TestWrongBytesFailTheRunBesideAModel(t *testing.T) {
	o := withModel().withDefaults()
	o.Open = func(ctx context.Context, c kvlane.Config) (*kvlane.Engine, error) {
		c.Device.Sim.Still = true // which the run does not know
		return kvlane.Open(ctx, c)
	}
	rig := openRig(t, &o)
	r := &run{o: &o, rep: new(Report), budget: bench.NewBudget(0, time.Now(), time.Now, 1)}
	if err := r.models(t.Context(), rig, []int{1}); !errors.Is(err, errdefs.ErrCorrupt) || !strings.Contains(err.Error(), "wrong bytes") {
		t.Errorf("%v", err)
	}
	if err := rig.close(); err != nil {
		t.Error(err)
	}
}
