package nic_test

import (
	"bytes"
	"testing"

	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream/nic"
	"github.com/kvlane/kvlane/stream/streamtest"
)

// TestListsAlongNeighbours checks how list entries are merged. Pieces that are adjacent on both
// sides are one entry. Pieces that are adjacent on one side only share a request, unless there are
// few of them or the list is short. The bytes must be right in all cases.
func TestListsAlongNeighbours(t *testing.T) {
	g := newRig(t, rigOptions{})
	listsAlongNeighbours(t, g, streamtest.Pinned(g.dev), streamtest.DeviceMemory(g.dev))
}

func TestVerbsListsAlongNeighbours(t *testing.T) {
	g := verbs(t)
	g.nics = g.nics[:1]
	listsAlongNeighbours(t, g, plainMemory(mem.KindHost), plainMemory(mem.KindDevice))
}

func listsAlongNeighbours(t *testing.T, g *rig, hosts, devices streamtest.Memory) {
	t.Helper()
	const size = 10
	apart, together := []int{0, 2, 4, 6, 8, 10, 12, 14}, []int{0, 1, 2, 3, 4, 5, 6, 7}
	gpu := g.memory(devices).Alloc(t, 16*size)
	host, back := g.memory(hosts).Alloc(t, 16*size), g.memory(hosts).Alloc(t, 16*size)
	for name, tt := range map[string]struct {
		gpu, host      []int
		requests, sges int
		pairs          int
	}{
		"both":                         {together, together, 1, 1, 1},
		"on the device":                {together, apart, 2, 4, 1},
		"on the host":                  {apart, together, 2, 4, 1},
		"neither":                      {apart, apart, 8, 1, 1},
		"half of them on the host":     {apart, []int{0, 1, 4, 5, 8, 9, 12, 13}, 4, 2, 1},
		"fewer on the host":            {apart, []int{0, 1, 2, 3, 6, 8, 10, 12}, 8, 1, 1},
		"on the host, of a short list": {apart[:7], together[:7], 7, 1, 1},
		"on the host, two queue pairs": {apart, together, 8, 1, 2},
	} {
		t.Run(name, func(t *testing.T) {
			for i := range host.Bytes() {
				host.Bytes()[i] = byte(i + 1)
			}
			clear(back.Bytes())
			for _, to := range []*mem.Region{gpu, back} {
				s := g.openUntilEnd(t, nic.Options{MaxSGE: 4, QueuePairs: tt.pairs})
				var b mem.Batch
				for i := range tt.gpu {
					far := mem.Extent{Region: gpu, Off: int64(tt.gpu[i] * size), Len: size}
					near := mem.Extent{Region: host, Off: int64(tt.host[i] * size), Len: size}
					if to == back {
						near.Region = back
						far, near = near, far
					}
					b.Dst, b.Src = append(b.Dst, far), append(b.Src, near)
				}
				ok(t, submit(t, s, &b))
				if requests, _, sges, _ := s.Posted(t); requests != tt.requests || sges != tt.sges {
					t.Errorf("to the %s: %d requests, of up to %d entries", to, requests, sges)
				}
			}
			for _, i := range tt.host {
				if at := i * size; !bytes.Equal(host.Bytes()[at:at+size], back.Bytes()[at:at+size]) {
					t.Fatalf("bytes at %d did not come back", at)
				}
			}
		})
	}
}

// TestPagesAlongSlots checks that pages that are scattered on the device and adjacent in the slots
// need few requests in both directions, and so do pages that are adjacent on the device.
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
	chance := []int{3, 4, 5, 0, 6, 1, 7, 2}
	for name, tt := range map[string]struct {
		planes         int
		page, slot     []int
		gap            int64 // gap between the planes in a slot
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
		"one plane, few by chance":    {1, shuffled, chance, 0, 8, 1, 1},
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
