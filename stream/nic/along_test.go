package nic_test

import (
	"bytes"
	"testing"

	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream/nic"
	"github.com/kvlane/kvlane/stream/streamtest"
)

// TestPagesAlongSlots: what is scattered over the device and in one piece in the slots travels by few requests, either way, and
// what is in one piece on the device as well.
func TestPagesAlongSlots(t *testing.T) {
	g := newRig(t, rigOptions{})
	pagesAlongSlots(t, g, streamtest.Pinned(g.dev), streamtest.DeviceMemory(g.dev))
}

func TestVerbsPagesAlongSlots(t *testing.T) {
	g := verbs(t)
	g.nics = g.nics[:1]
	pagesAlongSlots(t, g, plainMemory(mem.KindHost), plainMemory(mem.KindDevice))
}

func pagesAlongSlots(t *testing.T, g *rig, hosts, devices streamtest.Memory) {
	t.Helper()
	const pages, plane = 8, 16
	shuffled := []int{3, 0, 6, 5, 1, 7, 2, 4}
	sorted := []int{0, 1, 2, 3, 4, 5, 6, 7}
	for name, tt := range map[string]struct {
		planes         int
		page, slot     []int
		gap            int64 // between the planes in a slot
		requests, sges int
		pairs          int
	}{
		"planes of a page":            {4, shuffled, shuffled, 0, 8, 4, 1},
		"and slots in order":          {4, shuffled, sorted, 0, 2, 16, 1},
		"planes apart":                {4, shuffled, shuffled, 8, 32, 1, 1},
		"one plane, slots in order":   {1, shuffled, sorted, 0, 1, 8, 1},
		"one plane, pages in order":   {1, sorted, shuffled, 0, 1, 8, 1},
		"one plane, neither":          {1, shuffled, shuffled, 0, 8, 1, 1},
		"one plane, both":             {1, sorted, sorted, 0, 1, 1, 1},
		"two queue pairs, one stripe": {4, shuffled, sorted, 0, 32, 1, 2},
	} {
		t.Run(name, func(t *testing.T) {
			slot := int64(tt.planes) * (plane + tt.gap)
			gpu := g.memory(devices).Alloc(t, int64(tt.planes)*pages*plane)
			host, back := g.memory(hosts).Alloc(t, pages*slot), g.memory(hosts).Alloc(t, pages*slot)
			for i := range host.Bytes() {
				host.Bytes()[i] = byte(i*7 + i>>8)
			}
			for _, dir := range []mem.Direction{mem.ToPages, mem.ToSlots} {
				s := g.openUntilEnd(t, nic.Options{QueuePairs: tt.pairs})
				group := mem.PageGroup{Slots: mem.Slots{Region: host, Stride: slot}}
				if dir == mem.ToSlots {
					group.Slots.Region = back
				}
				for i := range int64(tt.planes) {
					group.Planes = append(group.Planes, mem.Plane{
						Region: gpu, Base: i * pages * plane, Stride: plane, Bytes: plane, SlotOff: i * (plane + tt.gap),
					})
				}
				for i := range pages {
					group.Pairs = append(group.Pairs, mem.PageSlot{Page: uint32(tt.page[i]), Slot: uint32(tt.slot[i])})
				}
				ok(t, submit(t, s, &mem.Batch{Paged: &mem.Paged{Dir: dir, Groups: []mem.PageGroup{group}}}))
				if requests, _, sges, _ := s.Posted(t); requests != tt.requests || sges > tt.sges {
					t.Errorf("%s: %d requests, of up to %d entries; want %d, of %d", dir, requests, sges, tt.requests, tt.sges)
				}
			}
			for at := int64(0); at < pages*slot; at += plane + tt.gap {
				if !bytes.Equal(host.Bytes()[at:at+plane], back.Bytes()[at:at+plane]) {
					t.Fatalf("bytes at %d did not come back", at)
				}
			}
		})
	}
}
