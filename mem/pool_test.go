package mem_test

import (
	"errors"
	"math"
	"sync"
	"testing"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
)

func newPool(tb testing.TB, n int, o mem.PoolOptions) *mem.Pool {
	tb.Helper()
	p, err := mem.NewPool(mem.Slots{Region: hostRegion(tb, cpuBase, int64(n)*64+32), Base: 32, Stride: 64}, n, o)
	if err != nil {
		tb.Fatal(err)
	}
	return p
}

func TestPoolHandsOutEachSlotOnce(t *testing.T) {
	const n = 10
	p := newPool(t, n, mem.PoolOptions{})
	seen := make(map[uint32]bool)
	for range n {
		s, err := p.Get()
		if err != nil {
			t.Fatal(err)
		}
		if seen[s] || s >= n {
			t.Errorf("slot %d was handed out twice or does not exist", s)
		}
		seen[s] = true
		if err := p.Slots().At(s).Validate(); err != nil {
			t.Error(err)
		}
	}
	if _, err := p.Get(); !errors.Is(err, errdefs.ErrBusy) {
		t.Errorf("Get of an exhausted pool: %v, want ErrBusy", err)
	}
	if err := p.Put(7); err != nil {
		t.Fatal(err)
	}
	if s, err := p.Get(); s != 7 || err != nil {
		t.Errorf("Get = %d, %v; want the slot given back", s, err)
	}
	if p.Len() != n || p.Free() != 0 {
		t.Errorf("Len %d, Free %d; want %d, 0", p.Len(), p.Free(), n)
	}
}

func TestPoolDetectsDoubleFree(t *testing.T) {
	p := newPool(t, 4, mem.PoolOptions{})
	s, err := p.Get()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Put(s); err != nil {
		t.Fatal(err)
	}
	for _, bad := range []uint32{s, 3, 4, math.MaxUint32} {
		if err := p.Put(bad); !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("Put(%d), which is not taken: %v, want ErrInvalid", bad, err)
		}
	}
	if p.Free() != 4 {
		t.Errorf("%d slots free after refused Puts, want 4", p.Free())
	}
}

func TestPoolZeroOnPut(t *testing.T) {
	for _, zero := range []bool{false, true} {
		p := newPool(t, 3, mem.PoolOptions{ZeroOnPut: zero})
		s, err := p.Get()
		if err != nil {
			t.Fatal(err)
		}
		all := p.Slots().Region.Bytes()
		for i := range all {
			all[i] = 0xee
		}
		if err := p.Put(s); err != nil {
			t.Fatal(err)
		}
		slot := p.Slots().At(s)
		for i, b := range all {
			in := int64(i) >= slot.Off && int64(i) < slot.Off+slot.Len
			want := byte(0xee)
			if in && zero {
				want = 0
			}
			if b != want {
				t.Fatalf("zero %v: byte %d is %#x, want %#x", zero, i, b, want)
			}
		}
	}
}

func TestNewPoolRefuses(t *testing.T) {
	host, dev := hostRegion(t, cpuBase, 640), deviceRegion(t, devBase, 0, 640)
	tests := map[string]struct {
		slots mem.Slots
		n     int
		o     mem.PoolOptions
	}{
		"no slot":                {mem.Slots{Region: host, Stride: 64}, 0, mem.PoolOptions{}},
		"one too many":           {mem.Slots{Region: host, Stride: 64}, 11, mem.PoolOptions{}},
		"base leaves one fewer":  {mem.Slots{Region: host, Base: 1, Stride: 64}, 10, mem.PoolOptions{}},
		"no stride":              {mem.Slots{Region: host}, 1, mem.PoolOptions{}},
		"huge stride":            {mem.Slots{Region: host, Stride: 1 << 62}, 5, mem.PoolOptions{}},
		"negative base":          {mem.Slots{Region: host, Base: -64, Stride: 64}, 1, mem.PoolOptions{}},
		"no region":              {mem.Slots{Stride: 64}, 1, mem.PoolOptions{}},
		"more slots than number": {mem.Slots{Region: host, Stride: 64}, math.MaxInt, mem.PoolOptions{}},
		"zeroing device memory":  {mem.Slots{Region: dev, Stride: 64}, 10, mem.PoolOptions{ZeroOnPut: true}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if _, err := mem.NewPool(tt.slots, tt.n, tt.o); !errors.Is(err, errdefs.ErrInvalid) {
				t.Errorf("NewPool: %v, want ErrInvalid", err)
			}
		})
	}
	if _, err := mem.NewPool(mem.Slots{Region: dev, Stride: 64}, 10, mem.PoolOptions{}); err != nil {
		t.Errorf("a pool of device memory: %v", err)
	}
}

// Each goroutine owns a slot while it writes to it, so that the race detector sees a slot that two own.
func TestPoolConcurrent(t *testing.T) {
	const slots, workers, rounds = 4, 8, 500
	p := newPool(t, slots, mem.PoolOptions{ZeroOnPut: true})
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for range rounds {
				s, err := p.Get()
				if errors.Is(err, errdefs.ErrBusy) {
					continue
				}
				b := p.Slots().At(s).Bytes()
				if err != nil || b[0] != 0 {
					t.Errorf("slot %d: %v, first byte %d", s, err, b[0])
				}
				b[0]++
				if err := p.Put(s); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if p.Free() != slots {
		t.Errorf("%d slots free at the end, want %d", p.Free(), slots)
	}
}
