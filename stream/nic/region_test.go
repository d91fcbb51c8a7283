package nic_test

import (
	"testing"

	"github.com/kvlane/kvlane/internal/sys/hostmem"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream/nic"
)

// TestAdjacentRegions: copies to neighbouring bytes of two regions, whose registrations have keys of their own, are two requests.
func TestAdjacentRegions(t *testing.T) {
	g := newRig(t, rigOptions{})
	b, err := hostmem.Alloc(8192)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = hostmem.Free(b) })
	var half [2]*mem.Region
	for i := range half {
		if half[i], err = g.dev.RegisterHost(b[i*4096 : (i+1)*4096 : (i+1)*4096]); err != nil {
			t.Fatal(err)
		}
		r := half[i]
		t.Cleanup(func() {
			if err := g.dev.Free(r); err != nil {
				t.Error(err)
			}
		})
		g.register(t, r)
	}
	src := g.pinned(t, 1024)
	for i := range src.Bytes() {
		src.Bytes()[i] = byte(i)
	}
	s := g.openUntilEnd(t, nic.Options{})
	ok(t, submit(t, s, &mem.Batch{
		Dst: []mem.Extent{{Region: half[0], Off: 3584, Len: 512}, {Region: half[1], Off: 0, Len: 512}},
		Src: []mem.Extent{{Region: src, Off: 0, Len: 512}, {Region: src, Off: 512, Len: 512}},
	}))
	for i, v := range b[3584 : 3584+1024] {
		if v != byte(i) {
			t.Fatalf("byte %d is %d", i, v)
		}
	}
}
