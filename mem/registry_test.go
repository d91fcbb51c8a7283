package mem_test

import (
	"errors"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
)

func TestRegistryResolvesInteriorAddresses(t *testing.T) {
	var g mem.Registry
	pinned := pinnedRegion(t, cpuBase, devBase, 0, 4096)
	dev := deviceRegion(t, devBase+4096, 0, 4096) // right behind
	twin := deviceRegion(t, devBase, 1, 4096)     // the same address on another device
	for _, r := range []*mem.Region{dev, pinned, twin} {
		if err := g.Add(r); err != nil {
			t.Fatal(err)
		}
	}
	if g.Len() != 3 {
		t.Errorf("%d regions, want 3", g.Len())
	}
	tests := []struct {
		name  string
		find  func() (mem.Extent, error)
		want  mem.Extent
		error error
	}{
		{"start", func() (mem.Extent, error) { return g.Dev(0, devBase, 4096) }, mem.All(pinned), nil},
		{"inside", func() (mem.Extent, error) { return g.Dev(0, devBase+100, 8) }, mem.Extent{Region: pinned, Off: 100, Len: 8}, nil},
		{"last byte", func() (mem.Extent, error) { return g.Dev(0, devBase+4095, 1) }, mem.Extent{Region: pinned, Off: 4095, Len: 1}, nil},
		{"neighbor", func() (mem.Extent, error) { return g.Dev(0, devBase+4096, 1) }, mem.Extent{Region: dev, Len: 1}, nil},
		{"across two regions", func() (mem.Extent, error) { return g.Dev(0, devBase+4095, 2) }, mem.Extent{}, errdefs.ErrInvalid},
		{"behind the last", func() (mem.Extent, error) { return g.Dev(0, devBase+8192, 1) }, mem.Extent{}, errdefs.ErrNotFound},
		{"before the first", func() (mem.Extent, error) { return g.Dev(0, devBase-1, 1) }, mem.Extent{}, errdefs.ErrNotFound},
		{"another device", func() (mem.Extent, error) { return g.Dev(1, devBase+8, 8) }, mem.Extent{Region: twin, Off: 8, Len: 8}, nil},
		{"a device without regions", func() (mem.Extent, error) { return g.Dev(2, devBase, 8) }, mem.Extent{}, errdefs.ErrNotFound},
		{"no such device", func() (mem.Extent, error) { return g.Dev(-2, devBase, 8) }, mem.Extent{}, errdefs.ErrInvalid},
		{"by CPU address", func() (mem.Extent, error) { return g.CPU(cpuBase+16, 16) }, mem.Extent{Region: pinned, Off: 16, Len: 16}, nil},
		{"a device address is no CPU address", func() (mem.Extent, error) { return g.CPU(devBase, 1) }, mem.Extent{}, errdefs.ErrNotFound},
		{"negative length", func() (mem.Extent, error) { return g.CPU(cpuBase, -1) }, mem.Extent{}, errdefs.ErrInvalid},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			e, err := tt.find()
			if e != tt.want || !errors.Is(err, tt.error) {
				t.Errorf("found [%d, +%d) of %s, %v", e.Off, e.Len, e.Region, err)
			}
		})
	}
	if err := g.Remove(pinned); err != nil {
		t.Fatal(err)
	}
	if err := g.Remove(pinned); !errors.Is(err, errdefs.ErrNotFound) {
		t.Errorf("second Remove: %v, want ErrNotFound", err)
	}
	if _, err := g.CPU(cpuBase, 1); !errors.Is(err, errdefs.ErrNotFound) {
		t.Errorf("found by CPU address after Remove: %v", err)
	}
	if _, err := g.Dev(0, devBase, 1); !errors.Is(err, errdefs.ErrNotFound) {
		t.Errorf("found by device address after Remove: %v", err)
	}
}

func TestRegistryRefusesOverlap(t *testing.T) {
	var g mem.Registry
	old := pinnedRegion(t, cpuBase, devBase, 0, 4096)
	if err := g.Add(old); err != nil {
		t.Fatal(err)
	}
	tests := map[string]*mem.Region{
		"itself":                     old,
		"CPU start inside":           pinnedRegion(t, cpuBase+4095, devBase+1<<20, 0, 64),
		"CPU end inside":             pinnedRegion(t, cpuBase-63, devBase+1<<20, 0, 64),
		"CPU around":                 hostRegion(t, cpuBase-64, 8192),
		"CPU within":                 hostRegion(t, cpuBase+64, 64),
		"device only, CPU elsewhere": pinnedRegion(t, cpuBase+1<<20, devBase+8, 0, 64),
		"device memory":              deviceRegion(t, devBase+4095, 0, 1),
	}
	for name, r := range tests {
		t.Run(name, func(t *testing.T) {
			if err := g.Add(r); !errors.Is(err, errdefs.ErrExists) {
				t.Errorf("Add = %v, want ErrExists", err)
			}
			// A refusal in the second address space must not leave the region in the first.
			if g.Len() != 1 {
				t.Errorf("%d regions, want 1", g.Len())
			}
			if _, err := g.CPU(cpuBase+1<<20, 1); !errors.Is(err, errdefs.ErrNotFound) {
				t.Errorf("a refused region is found: %v", err)
			}
		})
	}
	for _, r := range []*mem.Region{hostRegion(t, cpuBase+4096, 1), hostRegion(t, cpuBase-1, 1), deviceRegion(t, devBase, 1, 4096)} {
		if err := g.Add(r); err != nil {
			t.Errorf("a neighbor: %v", err)
		}
	}
}

func TestRegistryConcurrent(t *testing.T) {
	const regions, size = 64, 4096
	var g mem.Registry
	all := make([]*mem.Region, regions)
	for i := range all {
		all[i] = deviceRegion(t, devBase+mem.Addr(i*size), 0, size)
	}
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(w), 1))
			for range 300 {
				i := w + 4*rng.IntN(regions/4) // each goroutine changes regions of its own
				if err := g.Add(all[i]); err != nil {
					t.Error(err)
				}
				j := rng.IntN(regions)
				e, err := g.Dev(0, devBase+mem.Addr(j*size+17), 8)
				if err == nil && (e.Region != all[j] || e.Off != 17) || err != nil && !errors.Is(err, errdefs.ErrNotFound) {
					t.Errorf("region %d: %v, %v", j, e, err)
				}
				if e, err := g.Dev(0, devBase+mem.Addr(i*size), 8); err != nil || e.Region != all[i] {
					t.Errorf("own region %d: %v", i, err)
				}
				if err := g.Remove(all[i]); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if g.Len() != 0 {
		t.Errorf("%d regions left", g.Len())
	}
}

func BenchmarkRegistryDev(b *testing.B) {
	var g mem.Registry
	for i := range 256 {
		if err := g.Add(deviceRegion(b, devBase+mem.Addr(i)<<21, 0, 1<<21)); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := g.Dev(0, devBase+100<<21+12345, 4096); err != nil {
			b.Fatal(err)
		}
	}
}
