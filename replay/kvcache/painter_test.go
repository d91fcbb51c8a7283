package kvcache

import (
	"context"
	"fmt"
	"testing"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/sim"
)

// newTestCache returns a KV cache with a painter. If kernels is not set, the queue does not launch
// kernels.
func newTestCache(t *testing.T, g block.Geometry, pages int, kernels bool) (*Cache, *Painter) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	simulated, err := sim.Open(sim.Options{})
	must(err)
	var dev device.Device = simulated
	if !kernels {
		dev = plainDevice{simulated}
	}
	t.Cleanup(func() { must(dev.Close()) })
	layout, err := g.Layout()
	must(err)
	c, err := New(dev, layout, g.PlanesPerLayer(), pages, 1)
	must(err)
	t.Cleanup(func() { must(c.Close()) })
	p, err := NewPainter(c, pages)
	must(err)
	t.Cleanup(func() { must(p.Close(context.WithoutCancel(t.Context()))) })
	if (p.kernels != nil) != kernels {
		t.Fatalf("the painter has kernels: %t", p.kernels != nil)
	}
	return c, p
}

func TestPainterFindsEveryWrongByte(t *testing.T) {
	for _, g := range []block.Geometry{latent, layered} {
		for _, kernels := range []bool{true, false} {
			t.Run(fmt.Sprintf("layers=%d/kernels=%t", g.Layers, kernels), func(t *testing.T) {
				c, p := newTestCache(t, g, 4, kernels)
				all := Span{0, len(c.planes)}
				pages, seeds := []uint32{3, 0, 2}, []uint64{ContentSeed(7), ContentSeed(8), ContentSeed(1 << 60)}
				if err := p.Fill(t.Context(), all, pages, seeds); err != nil {
					t.Fatal(err)
				}
				mismatched := make([]int64, 3)
				for first := range c.planes { // plane by plane, in the order in which layers are checked
					if err := p.Check(t.Context(), Span{first, 1}, pages, seeds, mismatched); err != nil {
						t.Fatal(err)
					}
				}
				if mismatched[0]+mismatched[1]+mismatched[2] != 0 {
					t.Fatalf("wrong bytes right after filling: %v", mismatched)
				}
				plane := len(c.planes) - 1
				damagePage(t, c, p, plane, 0, 5)
				if err := p.Check(t.Context(), all, pages, seeds, mismatched); err != nil {
					t.Fatal(err)
				}
				if mismatched[0] != 0 || mismatched[1] != 1 || mismatched[2] != 0 {
					t.Errorf("wrong bytes: got %v, want [0 1 0]", mismatched)
				}
				gotPlane, off, err := p.Locate(t.Context(), 0, seeds[1])
				if err != nil || gotPlane != plane || off != 5 {
					t.Errorf("located plane %d offset %d (%v), want plane %d offset 5", gotPlane, off, err, plane)
				}
				if gotPlane, _, err := p.Locate(t.Context(), 3, seeds[0]); err != nil || gotPlane != -1 {
					t.Errorf("located plane %d (%v) in a page that is right", gotPlane, err)
				}
			})
		}
	}
}

// damagePage changes one byte of a page.
func damagePage(t *testing.T, c *Cache, p *Painter, plane int, page uint32, off int64) {
	t.Helper()
	at := c.planes[plane].Page(page).Sub(off, 1)
	if err := p.copy(t.Context(), p.stage.Sub(0, 1), at); err != nil {
		t.Fatal(err)
	}
	p.stage.Bytes()[0] ^= 0x40
	if err := p.copy(t.Context(), at, p.stage.Sub(0, 1)); err != nil {
		t.Fatal(err)
	}
}

// Kernels and host code must produce the same content, so that a replay on either can verify the
// blocks of the other.
func TestPainterOnHostAndDeviceAgree(t *testing.T) {
	c, onDevice := newTestCache(t, layered, 2, true)
	onHost := &Painter{cache: c, queue: onDevice.queue, most: onDevice.most, scratch: onDevice.scratch, stage: onDevice.stage, counts: onDevice.counts}
	all, mismatched := Span{0, len(c.planes)}, make([]int64, 1)
	for i, pair := range [][2]*Painter{{onDevice, onHost}, {onHost, onDevice}} {
		seeds := []uint64{ContentSeed(int64(i))}
		if err := pair[0].Fill(t.Context(), all, []uint32{1}, seeds); err != nil {
			t.Fatal(err)
		}
		if err := pair[1].Check(t.Context(), all, []uint32{1}, seeds, mismatched); err != nil {
			t.Fatal(err)
		}
	}
	if mismatched[0] != 0 {
		t.Errorf("%d bytes differ", mismatched[0])
	}
}

// The content of a block must never change, because directories with it survive the program.
func TestContentIsFixed(t *testing.T) {
	b := make([]byte, 12)
	pattern(b, ContentSeed(42), 3)
	if got := fmt.Sprintf("%x", b); got != contentOf42 {
		t.Errorf("plane 3 of block 42 begins with %s, want %s", got, contentOf42)
	}
	if n, first := mismatchedBytes(b, ContentSeed(42), 3); n != 0 || first != -1 {
		t.Errorf("%d wrong bytes from %d", n, first)
	}
	b[9] ^= 1
	if n, first := mismatchedBytes(b, ContentSeed(42), 3); n != 1 || first != 9 {
		t.Errorf("%d wrong bytes from %d, want 1 from 9", n, first)
	}
}

func TestPagesAreTakenTogether(t *testing.T) {
	c, _ := newTestCache(t, latent, 4, true)
	first, err := c.Take(t.Context(), nil, 3)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Take(ctx, nil, 2); err == nil {
		t.Fatal("acquired 2 pages, but only 1 is free")
	}
	c.Give(first)
	all, err := c.Take(t.Context(), nil, 4)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[uint32]bool{}
	for _, p := range all {
		seen[p] = true
	}
	if len(seen) != 4 {
		t.Errorf("pages %v are not 4 different ones", all)
	}
	c.Give(all)
}
