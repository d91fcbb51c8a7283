package measure_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream"
	streamcopy "github.com/kvlane/kvlane/stream/copy"
	"github.com/kvlane/kvlane/stream/copy/measure"
)

func TestMain(m *testing.M) { testkit.Main(m) }

func open(t *testing.T) device.Device {
	t.Helper()
	dev, err := sim.Open(sim.Options{})
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

const size, nearBlocks, farBlocks = 4096, 128, 64

func memory(t *testing.T, dev device.Device) (r *measure.Rig, near, far *mem.Region) {
	t.Helper()
	r = new(measure.Rig)
	near, err := r.Alloc(dev, nearBlocks*size)
	if err != nil {
		t.Fatal(err)
	}
	if far, err = r.AllocHost(dev, farBlocks*size); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r, near, far
}

// Each repetition pairs blocks differently, and none twice. Pages and lists describe the same
// copies. Rows are adjacent on the far side only.
func TestBlocks(t *testing.T) {
	_, near, far := memory(t, open(t))
	rng := rand.New(rand.NewPCG(1, 2))
	for _, row := range []int{1, 8} {
		pool := measure.NewPool(rng, nearBlocks/row, nearBlocks/row, 0)
		for _, dir := range []mem.Direction{mem.ToPages, mem.ToSlots} {
			for _, s := range []measure.Shape{{}, {NearRows: pool}, {NearRows: pool, Scatter: true}} {
				s.Dir, s.Near, s.Far, s.Size, s.Row, s.Count, s.Most = dir, near, far, size, row, 40, 17
				var list, pages measure.Blocks
				list.Reset(s)
				s.Pages, s.Sums = true, true
				pages.Reset(s)
				list.Resize(33)
				pages.Resize(33)
				paired := make(map[[2]int64]bool)
				for range 20 {
					seed := rng.Uint64()
					list.Draw(rand.New(rand.NewPCG(seed, 1)))
					list.Write()
					checkBlocks(t, &list, row)
					for i := range list.Count {
						dst, src := list.Offs(i)
						paired[[2]int64{dst, src}] = true
					}
				}
				if flat := s.NearRows == nil; flat != (len(paired) == list.Count) || !flat && len(paired) < 4*list.Count {
					t.Errorf("rows of %d: %d pairs in 20 repetitions of %d blocks", row, len(paired), list.Count)
				}
				pages.Draw(rng)
				pages.Write()
				i := 0
				for _, b := range pages.Batches() {
					if err := b.Validate(); err != nil {
						t.Fatal(err)
					}
					for dst, src := range b.Paged.Extents() {
						if to, from := pages.Offs(i); dst.Off != to || src.Off != from || dst.Len != size {
							t.Fatalf("block %d in rows of %d is copied from %d to %d, want from %d to %d", i, row, src.Off, dst.Off, from, to)
						}
						i++
					}
				}
				if i != pages.Count {
					t.Errorf("pages stand for %d blocks of %d", i, pages.Count)
				}
			}
		}
	}
}

// checkBlocks checks the lists of b.
func checkBlocks(t *testing.T, b *measure.Blocks, row int) {
	t.Helper()
	i := 0
	ends := [2]map[int64]bool{make(map[int64]bool), make(map[int64]bool)}
	for _, l := range b.Batches() {
		if len(l.Dst) > b.Most || len(l.Dst)%row != 0 || l.Validate() != nil {
			t.Fatalf("a batch of %d blocks, in rows of %d, of at most %d: %v", len(l.Dst), row, b.Most, l.Validate())
		}
		for j := range l.Dst {
			dst, src := b.Offs(i)
			if l.Dst[j].Off != dst || l.Src[j].Off != src {
				t.Fatalf("block %d is copied from %d to %d, want from %d to %d", i, l.Src[j].Off, l.Dst[j].Off, src, dst)
			}
			ends[0][dst], ends[1][src] = true, true
			if far := map[bool]int64{true: src, false: dst}[b.Dir == mem.ToPages]; far/size%int64(row) != int64(i%row) {
				t.Fatalf("block %d is at %d on the far side, outside of its row", i, far)
			}
			i++
		}
	}
	if i != b.Count || len(ends[0]) != i || len(ends[1]) != i || i != 33/row*row {
		t.Fatalf("%d blocks of %d, from %d places to %d", i, b.Count, len(ends[1]), len(ends[0]))
	}
}

// Consecutive draws from a pool that is large enough have no element in common.
func TestPool(t *testing.T) {
	_, near, far := memory(t, open(t))
	rng := rand.New(rand.NewPCG(3, 4))
	var b measure.Blocks
	b.Reset(measure.Shape{
		Dir: mem.ToPages, Near: near, Far: far, Size: size, Count: 20, Most: 20,
		NearRows: measure.NewPool(rng, 40, 100, 28), FarRows: measure.NewPool(rng, 20, 64, 0),
	})
	before := make(map[int64]bool)
	for range 50 {
		b.Draw(rng)
		now := make(map[int64]bool)
		for i := range b.Count {
			dst, _ := b.Offs(i)
			if now[dst] = true; before[dst] || dst < 28*size || dst >= 128*size {
				t.Fatalf("block %d at %d again, or out of the pool", i, dst)
			}
		}
		before = now
	}
}

// Memory is not freed while a later resource fails to close. All others are closed, and the next
// attempt continues.
func TestRigKeepsMemoryInUse(t *testing.T) {
	dev := open(t)
	r := new(measure.Rig)
	m, err := r.AllocHost(dev, 4096)
	if err != nil {
		t.Fatal(err)
	}
	stuck, closed := errdefs.ErrBusy, 0
	note := &announced{}
	if err := r.Register(note, m); err != nil {
		t.Fatal(err)
	}
	r.OnClose(func(context.Context) error { closed++; return nil })
	mark := r.Mark()
	r.OnClose(func(context.Context) error { return stuck })
	if err := r.CloseTo(mark); !errors.Is(err, errdefs.ErrBusy) {
		t.Errorf("%v, want ErrBusy", err)
	}
	if err := r.Close(); !errors.Is(err, errdefs.ErrBusy) || closed != 1 || note.taken != 0 || len(m.Bytes()) != 4096 {
		t.Errorf("%v, closed %d, unregistered %d times", err, closed, note.taken)
	}
	stuck = nil
	if err := r.Close(); err != nil || closed != 1 || note.taken != 1 {
		t.Errorf("%v, closed %d, unregistered %d times", err, closed, note.taken)
	}
}

// TestDefectMemoryIsFreedWhereANICKeepsIt checks that a failed registration is undone before the
// memory is freed.
func TestDefectMemoryIsFreedWhereANICKeepsIt(t *testing.T) {
	dev := open(t)
	r := new(measure.Rig)
	m, err := r.AllocHost(dev, 4096)
	if err != nil {
		t.Fatal(err)
	}
	note := &announced{fails: errdefs.ErrBusy}
	if err := r.Register(note, m); !errors.Is(err, errdefs.ErrBusy) {
		t.Fatal(err)
	}
	if err := r.Close(); !errors.Is(err, errdefs.ErrBusy) || note.taken != 0 || len(m.Bytes()) != 4096 {
		t.Errorf("%v, unregistered %d times", err, note.taken)
	}
	note.fails = nil
	if err := r.Close(); err != nil || note.taken != 1 {
		t.Errorf("%v, unregistered %d times", err, note.taken)
	}
}

type announced struct {
	fails error
	taken int
}

func (a *announced) Register(...*mem.Region) error { return a.fails }

func (a *announced) Unregister(context.Context, ...*mem.Region) error {
	if a.fails == nil {
		a.taken++
	}
	return a.fails
}

// If a batch is refused, the batches before it are waited for.
func TestCopyWaitsForWhatWasAccepted(t *testing.T) {
	dev := open(t)
	r, near, far := memory(t, dev)
	s, err := streamcopy.Open(dev, streamcopy.Options{})
	if err != nil {
		t.Fatal(err)
	}
	r.OnClose(s.Close)
	good := &mem.Batch{Dst: []mem.Extent{mem.All(near).Sub(0, size)}, Src: []mem.Extent{mem.All(far).Sub(0, size)}}
	bad := &mem.Batch{Dst: []mem.Extent{mem.All(near)}, Src: []mem.Extent{mem.All(far)}}
	tickets, _, err := measure.Copy(t.Context(), nil, []measure.Job{{By: s, Batch: good}, {By: s, Batch: bad}})
	if !errors.Is(err, errdefs.ErrInvalid) || len(tickets) != 1 || tickets[0].Completion().Path == stream.PathNone {
		t.Errorf("%v, tickets %v", err, tickets)
	}
}

func TestTurns(t *testing.T) {
	for round, want := range [][]int{{0, 1, 2}, {1, 2, 0}, {2, 0, 1}, {0, 1, 2}} {
		if got := slices.Collect(measure.Order(round, 3)); !slices.Equal(got, want) {
			t.Errorf("round %d: %v, want %v", round, got, want)
		}
	}
}

func TestQuantile(t *testing.T) {
	for _, c := range []struct {
		v    []float64
		q    float64
		want float64
	}{
		{nil, 0.5, 0},
		{[]float64{3}, 0.99, 3},
		{[]float64{9, 1, 5}, 0.5, 5},
		{[]float64{4, 1, 3, 2}, 0.5, 2.5},
		{[]float64{4, 1, 3, 2}, 0.25, 1.75}, // as R's quantile() and numpy's percentile() compute it
		{[]float64{1, 2, 3, 4, 5}, 1, 5},
	} {
		if got := measure.Quantile(slices.Clone(c.v), c.q); got != c.want {
			t.Errorf("%v-quantile of %v is %v, want %v", c.q, c.v, got, c.want)
		}
	}
}

func TestLowMedian(t *testing.T) {
	v := []float64{4, 1, 3, 2}
	if got := measure.LowMedian(v); got != 2 || v[0] != 4 {
		t.Errorf("%v of %v", got, v)
	}
}
