package bench

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/errdefs"
)

func TestPatternDependsOnItsPlace(t *testing.T) {
	b := make([]byte, 64)
	WritePattern(b, farTag, 128)
	if err := CheckPattern(b, farTag, 128); err != nil {
		t.Error(err)
	}
	for name, err := range map[string]error{
		"another place":  CheckPattern(b, farTag, 136),
		"another source": CheckPattern(b, nearTag, 128),
	} {
		if !errors.Is(err, errdefs.ErrCorrupt) {
			t.Errorf("%s: %v, want ErrCorrupt", name, err)
		}
	}
	fill(b[:33])
	if !slices.Equal(b[:33], slices.Repeat([]byte{poison}, 33)) {
		t.Errorf("fill left % x", b)
	}
}

// Without kernels the check reads device memory back, and finds the same faults.
func TestCheckWithoutKernels(t *testing.T) {
	dev, err := sim.Open(sim.Options{})
	if err != nil {
		t.Fatal(err)
	}
	o := small().withDefaults(dev.Info())
	r, err := newRig(t.Context(), dev, nil, o.PoolBytes, o.Bytes, 4096)
	if err != nil {
		t.Fatal(err)
	}
	r.near.checker = nil
	b := &bench{rig: r, o: &o, rng: rand.New(rand.NewPCG(1, 2))}
	p := b.newPlan(Lists, 3, Cell{4096, 8}, ToDevice, HostScattered)
	p.Draw(b.rng)
	p.Write()
	if err := r.poison(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	if err := r.check(t.Context(), p); !errors.Is(err, errdefs.ErrCorrupt) {
		t.Errorf("poisoned memory: %v, want ErrCorrupt", err)
	}
	for _, l := range p.Batches() {
		for i := range l.Dst {
			if err := r.near.copyOne(t.Context(), l.Dst[i], l.Src[i]); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := r.check(t.Context(), p); err != nil {
		t.Error(err)
	}
	if err := errors.Join(r.Close(), dev.Close()); err != nil {
		t.Error(err)
	}
}
