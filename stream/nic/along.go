package nic

import (
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/rdma"
)

// A request goes on through remote memory, and takes up to MaxSGE places of local memory. The device's side is the remote one
// unless the copies are reversed, which pays where they are neighbours on the other side: blocks that lie together on the
// host and are scattered over the device then take one request for many. With several queue pairs neighbours would travel by
// different ones, so nothing is reversed. What is reversed waits for what is not, if both write the same memory: that a few
// copies happen to be neighbours is not worth it.

// opcode returns how a copy between these travels, unless it is reversed.
func opcode(dst, src *mem.Region) rdma.WROpcode {
	if src.Kind() == mem.KindDevice && dst.Kind() != mem.KindDevice {
		return rdma.WRRDMARead
	}
	return rdma.WRRDMAWrite
}

// reversed returns the opcode by which the other side is the remote one.
func reversed(o rdma.WROpcode) rdma.WROpcode {
	if o == rdma.WRRDMARead {
		return rdma.WRRDMAWrite
	}
	return rdma.WRRDMARead
}

// fewCopies is how many copies a list has at least that is reversed.
const fewCopies = 8

// mayReverse reports whether copies that travel by o may be reversed.
func (s *Stream) mayReverse(o rdma.WROpcode) bool {
	return len(s.pairs) == 1 && s.rails[0].MaxSGE(reversed(o)) > 1
}

// worthReversing reports whether to reverse n copies, of which so many begin where the one before ends on the local side, and on
// the remote one: if it at least halves the requests.
func worthReversing(n, local, remote int) bool { return local > remote && 2*local >= n }

// neighbours are how many copies of a list begin where the one before ends, in local and in remote memory.
type neighbours [2]int

const (
	local = iota
	remote
)

// dstSide returns which side the destination of copies by o is.
func dstSide(o rdma.WROpcode) int {
	if o == rdma.WRRDMARead {
		return local
	}
	return remote
}

// orient reverses o's list, of n copies that have bytes, if that pays. All opcodes of the list change.
func (s *Stream) orient(o *op, n int, next *neighbours) {
	if len(s.pairs) > 1 || n < fewCopies || !worthReversing(n, next[local], next[remote]) {
		return
	}
	u := &o.uses
	if u.pushed != 0 && !s.mayReverse(rdma.WRRDMAWrite) || u.fetched != 0 && !s.mayReverse(rdma.WRRDMARead) {
		return
	}
	u.pushed, u.fetched = u.fetched, u.pushed
	o.needs.reversed = true
}

// alongSlots reports whether the copies of g travel along its slots, the remote side: of one page the planes are neighbours
// there, or of one plane the slots of the pages.
func (s *Stream) alongSlots(g *mem.PageGroup, dir mem.Direction) bool {
	if !s.mayReverse(reversed(alongOpcode(dir))) {
		return false
	}
	for i := 1; i < len(g.Planes); i++ {
		if p := &g.Planes[i-1]; g.Planes[i].SlotOff == p.SlotOff+p.Bytes {
			return true
		}
	}
	if len(g.Planes) != 1 || g.Slots.Stride != g.Planes[0].Bytes {
		return false
	}
	slots, pages := 0, 0
	for i := 1; i < len(g.Pairs); i++ {
		if g.Pairs[i].Slot == g.Pairs[i-1].Slot+1 {
			slots++
		}
		if g.Pairs[i].Page == g.Pairs[i-1].Page+1 {
			pages++
		}
	}
	if g.Planes[0].Stride != g.Planes[0].Bytes {
		pages = 0
	}
	return worthReversing(len(g.Pairs), slots, pages)
}

// alongOpcode returns how the copies of a page group travel along its slots.
func alongOpcode(dir mem.Direction) rdma.WROpcode {
	if dir == mem.ToPages {
		return rdma.WRRDMARead
	}
	return rdma.WRRDMAWrite
}
