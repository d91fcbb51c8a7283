package bench

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/errdefs"
)

// Every repetition pairs blocks otherwise, and none twice.
func TestScatter(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, l := range []Layout{HostContiguous, HostScattered, BothScattered, BothContiguous} {
		p := newPlan(&rig{}, Lists, 7, Cell{8, 40}, ToHost, l, permutation(100, rng))
		p.resize(30)
		paired := make(map[[2]uint32]int)
		for range 20 {
			p.scatter(rng)
			near, far := slices.Sorted(slices.Values(p.near[:p.n])), slices.Sorted(slices.Values(p.far[:p.n]))
			if len(slices.Compact(near)) != p.n || near[p.n-1] >= 100 || !slices.Equal(far, identity(p.n)) {
				t.Fatalf("%s: blocks %v and %v", l, near, far)
			}
			for i := range p.n {
				paired[[2]uint32{p.near[i], p.far[i]}]++
			}
		}
		if flat := l == BothContiguous; flat != (len(paired) == p.n) || !flat && len(paired) < 15*p.n {
			t.Errorf("%s: %d pairs in 20 repetitions of %d blocks", l, len(paired), p.n)
		}
	}
}

func TestPatternKnowsItsPlace(t *testing.T) {
	b := make([]byte, 64)
	writePattern(b, farTag, 128)
	if err := checkPattern(b, farTag, 128); err != nil {
		t.Error(err)
	}
	for name, err := range map[string]error{
		"another place":  checkPattern(b, farTag, 136),
		"another source": checkPattern(b, nearTag, 128),
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

// Reading device memory back finds what the kernel finds.
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
	p := newPlan(r, Lists, 3, Cell{4096, 8}, ToDevice, HostScattered, permutation(int(o.PoolBytes/4096), rand.New(rand.NewPCG(1, 2))))
	p.scatter(rand.New(rand.NewPCG(1, 1)))
	p.write()
	if err := r.poison(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	if err := r.check(t.Context(), p); !errors.Is(err, errdefs.ErrCorrupt) {
		t.Errorf("poisoned memory: %v, want ErrCorrupt", err)
	}
	for i := range p.dstList {
		if err := r.near.copyOne(t.Context(), p.dstList[i], p.srcList[i]); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.check(t.Context(), p); err != nil {
		t.Error(err)
	}
	if err := errors.Join(r.close(), dev.Close()); err != nil {
		t.Error(err)
	}
}
