package mem_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/leak"
	"github.com/kvlane/kvlane/mem"
)

// slotMemory is an Allocator of host memory that counts its regions.
type slotMemory struct {
	live          atomic.Int64
	refuse, stuck error
}

func (m *slotMemory) Alloc(n int64) (*mem.Region, error) {
	if m.refuse != nil {
		return nil, m.refuse
	}
	m.live.Add(1)
	leak.Add(leak.HostBytes, n)
	return mem.NewRegion(mem.RegionSpec{Kind: mem.KindHost, Device: mem.NoDevice, Len: n, CPU: 1 << 20, Bytes: make([]byte, n)})
}

func (m *slotMemory) Free(r *mem.Region) error {
	if m.stuck != nil {
		return m.stuck
	}
	m.live.Add(-1)
	leak.Add(leak.HostBytes, -r.Len())
	return nil
}

func newPool(t *testing.T, n int64) (*mem.SlotPool, *slotMemory) {
	t.Helper()
	m := new(slotMemory)
	p, err := mem.NewSlotPool(m, n, 4096)
	if err != nil {
		t.Fatal(err)
	}
	return p, m
}

func acquire(t *testing.T, p *mem.SlotPool) mem.PoolSlot {
	t.Helper()
	s, err := p.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func closePool(t *testing.T, p *mem.SlotPool) {
	t.Helper()
	if err := p.Close(context.WithoutCancel(t.Context())); err != nil {
		t.Error(err)
	}
}

func TestSlotPoolLendsEachSlotOnce(t *testing.T) {
	p, m := newPool(t, 3)
	seen := make(map[int64]bool)
	var lent []mem.PoolSlot
	for range 3 {
		s := acquire(t, p)
		if e := s.Extent(); seen[e.Off] || e.Len != 4096 || e != p.Slots().At(s.Index()) || e.Validate() != nil {
			t.Errorf("slot %d is %+v", s.Index(), e)
		}
		seen[s.Extent().Off] = true
		lent = append(lent, s)
	}
	if st := p.Stats(); st != (mem.SlotPoolStats{Slots: 3, Lent: 3, HighWater: 3}) {
		t.Errorf("stats %+v", st)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := p.Acquire(ended); !errors.Is(err, errdefs.ErrBusy) || !errors.Is(err, context.Canceled) {
		t.Errorf("a fourth slot of three: %v", err)
	}
	if err := p.Close(t.Context()); !errors.Is(err, errdefs.ErrBusy) {
		t.Errorf("close while slots are lent: %v", err)
	}
	if _, err := p.Acquire(t.Context()); !errors.Is(err, errdefs.ErrClosed) {
		t.Errorf("acquire after Close: %v", err)
	}
	for _, s := range lent {
		s.Release()
	}
	closePool(t, p)
	closePool(t, p)
	if n := m.live.Load(); n != 0 {
		t.Errorf("%d regions are left, want none: each is freed once", n)
	}
}

func TestSlotPoolRefuses(t *testing.T) {
	for _, c := range []struct{ n, stride int64 }{{0, 1}, {-1, 1}, {1, 0}, {1 << 40, 1}, {1 << 30, 1 << 40}} {
		if _, err := mem.NewSlotPool(new(slotMemory), c.n, c.stride); !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("%d slots of %d bytes: %v", c.n, c.stride, err)
		}
	}
	if _, err := mem.NewSlotPool(&slotMemory{refuse: errdefs.ErrNoMemory}, 1, 1); !errors.Is(err, errdefs.ErrNoMemory) {
		t.Errorf("without memory: %v", err)
	}
	p, m := newPool(t, 1)
	m.stuck = errdefs.ErrBusy
	if err := p.Close(t.Context()); !errors.Is(err, errdefs.ErrBusy) {
		t.Errorf("memory that is not freed: %v", err)
	}
	m.stuck = nil
	closePool(t, p)
}

// After a slot was released, its loan may belong to another owner. The old owner must not release
// it again.
func TestDefectSlotReleasedTwice(t *testing.T) {
	p, _ := newPool(t, 1)
	first := acquire(t, p)
	first.Release()
	second := acquire(t, p)
	for name, op := range map[string]func(){
		"release":    first.Release,
		"quarantine": func() { first.Quarantine(nil) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("a second %s is not found", name)
				}
			}()
			op()
		}()
	}
	if st := p.Stats(); st.Lent != 1 || st.Quarantined != 0 {
		t.Errorf("stats %+v: the second owner has lost its slot", st)
	}
	quiesced := make(chan struct{})
	second.Quarantine(quiesced)
	func() {
		defer func() {
			if recover() == nil {
				t.Error("a slot in quarantine was released")
			}
		}()
		second.Release()
	}()
	close(quiesced)
	closePool(t, p)
}

func TestSlotPoolServesWaitersInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, _ := newPool(t, 1)
		s := acquire(t, p)
		var order []int
		for i := range 3 {
			go func() {
				s := acquire(t, p)
				order = append(order, i)
				s.Release()
			}()
			synctest.Wait()
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		begin := time.Now()
		if _, err := p.Acquire(ctx); !errors.Is(err, errdefs.ErrBusy) || time.Since(begin) != time.Minute {
			t.Errorf("acquire for a minute: %v after %v", err, time.Since(begin))
		}
		if st := p.Stats(); st.Waiting != 3 || st.Waits != 4 {
			t.Errorf("stats %+v", st)
		}
		s.Release()
		synctest.Wait()
		if len(order) != 3 || order[0] != 0 || order[1] != 1 || order[2] != 2 {
			t.Errorf("slots were lent in the order %v", order)
		}
		s = acquire(t, p)
		left := make(chan error, 1)
		go func() {
			_, err := p.Acquire(t.Context())
			left <- err
		}()
		synctest.Wait()
		if err := p.Close(t.Context()); !errors.Is(err, errdefs.ErrBusy) {
			t.Errorf("close: %v", err)
		}
		if err := <-left; !errors.Is(err, errdefs.ErrClosed) {
			t.Errorf("a call that waited during Close: %v", err)
		}
		s.Release()
		closePool(t, p)
	})
}

// Hardware may still write to a slot in quarantine, so it is neither lent nor freed.
func TestDefectSlotInQuarantineIsLent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, m := newPool(t, 2)
		one, two := acquire(t, p), acquire(t, p)
		quiesced := make(chan struct{})
		one.Quarantine(quiesced)
		two.Release()
		if s := acquire(t, p); s.Index() != two.Index() {
			t.Error("the slot in quarantine was lent")
		} else {
			s.Release()
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := p.Close(ctx); !errors.Is(err, errdefs.ErrBusy) || m.live.Load() != 1 {
			t.Errorf("close with a slot in quarantine: %v, %d regions", err, m.live.Load())
		}
		time.AfterFunc(time.Hour, func() { close(quiesced) })
		closePool(t, p)
		if m.live.Load() != 0 || p.Stats().Quarantined != 0 {
			t.Errorf("%d regions are left, stats %+v", m.live.Load(), p.Stats())
		}
	})
}

func TestSlotPoolHammer(t *testing.T) {
	const workers, rounds = 8, 500
	p, _ := newPool(t, 3)
	var owners [3]atomic.Int64
	var wg sync.WaitGroup
	for w := range workers {
		rng := rand.New(rand.NewPCG(uint64(w), 7))
		wg.Go(func() {
			for range rounds {
				s, err := p.Acquire(t.Context())
				if err != nil {
					t.Error(err)
					return
				}
				if owners[s.Index()].Add(1) != 1 {
					t.Errorf("slot %d has two owners", s.Index())
				}
				if rng.IntN(8) > 0 {
					owners[s.Index()].Add(-1)
					s.Release()
					continue
				}
				quiesced := make(chan struct{})
				s.Quarantine(quiesced)
				owners[s.Index()].Add(-1)
				close(quiesced)
			}
		})
	}
	wg.Wait()
	closePool(t, p)
}
