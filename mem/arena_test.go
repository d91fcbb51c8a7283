package mem_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
)

// arenaRig has the hooks of an arena over made-up device memory. It counts open regions.
type arenaRig struct {
	mu                  sync.Mutex
	allocs, registers   int
	live, registered    map[*mem.Region]bool
	failAlloc, failReg  int // number of the call that fails, from 1
	failDereg, failFree bool
	skew                uint64        // offset of regions from a 4 KiB boundary
	began, proceed      chan struct{} // of Register; nil: it does not wait
	kept                []error
	nextAddr            uint64
}

func (g *arenaRig) hooks() mem.ArenaHooks {
	g.live, g.registered, g.nextAddr = make(map[*mem.Region]bool), make(map[*mem.Region]bool), 1<<40
	return mem.ArenaHooks{
		Alloc: func(n int64) (*mem.Region, error) {
			g.mu.Lock()
			defer g.mu.Unlock()
			if g.allocs++; g.allocs == g.failAlloc {
				return nil, fmt.Errorf("%w: %w", errStep, errdefs.ErrNoMemory)
			}
			r, err := mem.NewRegion(mem.RegionSpec{Kind: mem.KindDevice, Dev: mem.DevAddr(g.nextAddr + g.skew), Len: n})
			g.nextAddr += 1 << 32
			g.live[r] = true
			return r, err
		},
		Free: func(r *mem.Region) error {
			g.mu.Lock()
			defer g.mu.Unlock()
			if g.registered[r] || !g.live[r] {
				panic("freed a registered region, or twice")
			}
			if g.failFree {
				return errStep
			}
			delete(g.live, r)
			return nil
		},
		Register: func(r *mem.Region) (uint32, error) {
			if g.began != nil {
				g.began <- struct{}{}
				<-g.proceed
			}
			g.mu.Lock()
			defer g.mu.Unlock()
			if g.registers++; g.registers == g.failReg {
				return 0, errStep
			}
			g.registered[r] = true
			return uint32(g.registers), nil
		},
		Deregister: func(_ context.Context, r *mem.Region) error {
			g.mu.Lock()
			defer g.mu.Unlock()
			if g.failDereg {
				return errStep
			}
			delete(g.registered, r)
			return nil
		},
		Kept: func(err error) {
			g.mu.Lock()
			defer g.mu.Unlock()
			g.kept = append(g.kept, err)
		},
	}
}

// open returns an arena of two blocks for each of at most three regions.
func (g *arenaRig) open(t *testing.T) *mem.Arena {
	t.Helper()
	a, err := mem.NewArena(mem.ArenaOptions{BlockBytes: 64 << 10, RegionBytes: 128 << 10, MaxRegions: 3, Idle: time.Second, Hooks: g.hooks()})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func (g *arenaRig) close(t *testing.T, a *mem.Arena) {
	t.Helper()
	if err := a.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if len(g.live) > 0 || len(g.registered) > 0 {
		t.Errorf("%d regions are left, %d registered", len(g.live), len(g.registered))
	}
}

func ended() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

func TestArenaGrowsAndTrims(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := new(arenaRig)
		a := g.open(t)
		seen := make(map[mem.DevAddr]bool)
		var lent []mem.ArenaBlock
		for i := range 6 {
			b, err := a.Acquire(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			e := b.Extent()
			if e.Len != 64<<10 || seen[e.Dev()] || b.Key() != uint32(i/2+1) {
				t.Errorf("block %d: %v, key %d", i, e, b.Key())
			}
			seen[e.Dev()] = true
			lent = append(lent, b)
		}
		if _, err := a.Acquire(ended()); !errors.Is(err, errdefs.ErrBusy) || !errors.Is(err, context.Canceled) {
			t.Errorf("acquire beyond the bound: %v", err)
		}
		go func() {
			time.Sleep(time.Millisecond)
			lent[3].Release()
		}()
		b, err := a.Acquire(t.Context())
		if err != nil || b.Extent() != lent[3].Extent() {
			t.Errorf("after a release: %v, %v", b, err)
		}
		lent[3] = b
		if err := a.Close(t.Context()); !errors.Is(err, errdefs.ErrBusy) {
			t.Errorf("close with lent blocks: %v", err)
		}
		for _, b := range lent {
			b.Release()
		}
		g.close(t, a)
		if _, err := a.Acquire(t.Context()); !errors.Is(err, errdefs.ErrClosed) {
			t.Errorf("acquire after close: %v", err)
		}
	})
}

func TestArenaTrims(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := new(arenaRig)
		a := g.open(t)
		var lent []mem.ArenaBlock
		for range 6 {
			b, err := a.Acquire(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			lent = append(lent, b)
		}
		for _, i := range []int{5, 4, 3} { // the third region is unused, and half of the second one
			lent[i].Release()
		}
		time.Sleep(900 * time.Millisecond)
		if s := a.Stats(); s.Regions != 3 || s.Trimmed != 0 {
			t.Errorf("before the time: %+v", s)
		}
		lent[2].Release()
		time.Sleep(200 * time.Millisecond)
		if s := a.Stats(); s.Regions != 2 || s.Trimmed != 1 || s.Lent != 2 || s.HighWater != 6 || s.Blocks != 4 || s.Bytes != 2*(128<<10) {
			t.Errorf("after the time: %+v", s)
		}
		time.Sleep(time.Second)
		if s := a.Stats(); s.Regions != 1 || s.Trimmed != 2 {
			t.Errorf("after the second time: %+v", s)
		}
		lent[0].Release()
		lent[1].Release()
		g.close(t, a)
		time.Sleep(2 * time.Second) // the timer finds a closed arena
	})
}

// A region that cannot be allocated or registered fails the waiting calls and leaves nothing. Later
// calls succeed.
func TestDefectRegionNFails(t *testing.T) {
	for n := 1; n <= 3; n++ {
		for name, fail := range map[string]func(g *arenaRig){
			"alloc":    func(g *arenaRig) { g.failAlloc = n },
			"register": func(g *arenaRig) { g.failReg = n },
		} {
			g := new(arenaRig)
			fail(g)
			a := g.open(t)
			var lent []mem.ArenaBlock
			failed := 0
			for len(lent) < 6 {
				b, err := a.Acquire(t.Context())
				if err != nil {
					if failed++; !errors.Is(err, errStep) || len(lent) != 2*(n-1) || len(g.live) != n-1 || len(g.registered) != n-1 {
						t.Fatalf("%s of region %d, with %d blocks lent and %d regions: %v", name, n, len(lent), len(g.live), err)
					}
					continue
				}
				lent = append(lent, b)
			}
			if s := a.Stats(); failed != 1 || s.Failed != 1 || s.Grown != 3 {
				t.Errorf("%s of region %d: %d failures, %+v", name, n, failed, s)
			}
			for _, b := range lent {
				b.Release()
			}
			g.close(t, a)
		}
	}
}

// Blocks are lent and released while a region is registered.
func TestDefectLockDuringRegistration(t *testing.T) {
	g := &arenaRig{began: make(chan struct{}), proceed: make(chan struct{})}
	a := g.open(t)
	got := make(chan mem.ArenaBlock, 3)
	acquire := func() {
		b, err := a.Acquire(context.Background())
		if err != nil {
			t.Error(err)
		}
		got <- b
	}
	go acquire()
	<-g.began
	g.proceed <- struct{}{}
	first := <-got
	second, err := a.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	go acquire()
	<-g.began // of the second region, which stays in progress
	second.Release()
	if b := <-got; b.Extent() != second.Extent() {
		t.Error("the waiting call did not get the released block")
	} else {
		b.Release()
	}
	b, err := a.Acquire(t.Context())
	if err != nil || b.Extent() != second.Extent() {
		t.Errorf("acquire during a registration: %v", err)
	}
	b.Release()
	first.Release()
	g.proceed <- struct{}{}
	g.close(t, a)
}

func TestArenaKeepsWhatItCannotFree(t *testing.T) {
	for name, fail := range map[string]func(g *arenaRig, to bool){
		"deregister": func(g *arenaRig, to bool) { g.failDereg = to },
		"free":       func(g *arenaRig, to bool) { g.failFree = to },
	} {
		g := new(arenaRig)
		a := g.open(t)
		b, err := a.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		b.Release()
		fail(g, true)
		if err := a.Close(t.Context()); !errors.Is(err, errStep) || len(g.kept) != 1 || a.Stats().Kept != 1 {
			t.Errorf("%s: %v, %v", name, err, g.kept)
		}
		fail(g, false)
		g.close(t, a)
	}
}

func TestArenaBlocksBeginAtABoundary(t *testing.T) {
	g := &arenaRig{skew: 512}
	a := g.open(t)
	b, err := a.Acquire(t.Context())
	if err != nil || b.Extent().Dev()%4096 != 0 || a.Stats().Blocks != 1 {
		t.Errorf("%v, %v, %+v", b.Extent(), err, a.Stats())
	}
	b.Release()
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the second release is not detected")
			}
		}()
		b.Release()
	}()
	g.close(t, a)
}

func TestArenaRefusesOptions(t *testing.T) {
	h := new(arenaRig).hooks()
	half := h
	half.Deregister = nil
	for _, o := range []mem.ArenaOptions{
		{},
		{Hooks: half},
		{BlockBytes: -1, Hooks: h},
		{RegionBytes: 1, Hooks: h},
		{BlockBytes: 1 << 32, Hooks: h},
		{MaxRegions: -1, Hooks: h},
		{Idle: -1, Hooks: h},
		{BlockBytes: 1, RegionBytes: 1 << 40, Hooks: h},
	} {
		if _, err := mem.NewArena(o); !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("%+v: %v", o, err)
		}
	}
	a, err := mem.NewArena(mem.ArenaOptions{Hooks: h})
	if err != nil || a.BlockBytes() != mem.DefaultArenaBlockBytes {
		t.Errorf("defaults: %v", err)
	}
}

// TestArenaConcurrently checks that no block has two owners, while regions fail, grow and are
// trimmed.
func TestArenaConcurrently(t *testing.T) {
	g := &arenaRig{failReg: 2}
	h := g.hooks()
	a, err := mem.NewArena(mem.ArenaOptions{BlockBytes: 64 << 10, RegionBytes: 128 << 10, MaxRegions: 3, Idle: 50 * time.Microsecond, Hooks: h})
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	owned := make(map[mem.DevAddr]bool)
	var group sync.WaitGroup
	for seed := range uint64(8) {
		group.Go(func() {
			rng := rand.New(rand.NewPCG(seed, 1))
			for range 300 {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rng.IntN(2000))*time.Microsecond)
				b, err := a.Acquire(ctx)
				cancel()
				if err != nil {
					if !errors.Is(err, errStep) && !errors.Is(err, errdefs.ErrBusy) {
						t.Error(err)
					}
					continue
				}
				at := b.Extent().Dev()
				mu.Lock()
				if owned[at] {
					t.Errorf("block %#x is lent twice", uint64(at))
				}
				owned[at] = true
				mu.Unlock()
				if rng.IntN(4) == 0 {
					time.Sleep(time.Duration(rng.IntN(100)) * time.Microsecond)
				}
				mu.Lock()
				delete(owned, at)
				mu.Unlock()
				b.Release()
			}
		})
	}
	group.Wait()
	g.mu.Lock()
	n := len(g.live)
	g.mu.Unlock()
	if s := a.Stats(); n > 3 || s.Lent != 0 || s.Waiting != 0 {
		t.Errorf("%d regions, %+v", n, s)
	}
	g.close(t, a)
}
