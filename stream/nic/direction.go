package nic

import (
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/rdma"
)

// A request covers adjacent remote memory and up to MaxSGE ranges of local memory. The device is
// the remote side unless copies are reversed. If copies are adjacent only on the other side,
// reversing them saves requests: for example, blocks in order on the host that are scattered over
// the device then share a request. With several queue pairs adjacent copies use different ones, so
// nothing is reversed. Reversed copies must wait for other copies that write the same memory, so a
// few adjacent copies are not reversed.

// opcode returns the opcode of a copy that is not reversed.
func opcode(dst, src *mem.Region) rdma.WROpcode {
	if src.Kind() == mem.KindDevice && dst.Kind() != mem.KindDevice {
		return rdma.WRRDMARead
	}
	return rdma.WRRDMAWrite
}

// reversed returns the opcode with which the other side is the remote one.
func reversed(o rdma.WROpcode) rdma.WROpcode {
	if o == rdma.WRRDMARead {
		return rdma.WRRDMAWrite
	}
	return rdma.WRRDMARead
}

// fewCopies is the minimum number of copies of a reversed list.
const fewCopies = 8

// mayReverse reports whether copies by opcode o may be reversed.
func (s *Stream) mayReverse(o rdma.WROpcode) bool {
	return len(s.pairs) == 1 && s.rails[0].MaxSGE(reversed(o)) > 1
}

// worthReversing reports whether reversing n copies at least halves their requests. local and
// remote are the numbers of copies that begin where the previous copy ends, on each side.
func worthReversing(n, local, remote int) bool { return local > remote && 2*local >= n }

// neighbours counts the copies of a list that begin where the previous copy ends, in local and in
// remote memory.
type neighbours [2]int

const (
	local = iota
	remote
)

// dstSide returns the side of the destination of copies by opcode o.
func dstSide(o rdma.WROpcode) int {
	if o == rdma.WRRDMARead {
		return local
	}
	return remote
}

// chooseDirection reverses o's list of n nonempty copies if that saves requests. It then changes
// all opcodes of the list.
func (s *Stream) chooseDirection(o *op, n int, next *neighbours) {
	if len(s.pairs) > 1 || n < fewCopies || !worthReversing(n, next[local], next[remote]) {
		return
	}
	u := &o.uses
	if u.pushed != 0 && !s.mayReverse(rdma.WRRDMAWrite) || u.fetched != 0 && !s.mayReverse(rdma.WRRDMARead) {
		return
	}
	u.pushed, u.fetched = u.fetched, u.pushed
	o.manifest.reversed = true
}

// alongSlots reports whether the copies of g use the slots as the remote side. That saves requests
// if the planes of a page are adjacent in its slot, or if the pages of a single plane have adjacent
// slots.
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

// alongOpcode returns the opcode of a page group's copies with the slots as the remote side.
func alongOpcode(dir mem.Direction) rdma.WROpcode {
	if dir == mem.ToPages {
		return rdma.WRRDMARead
	}
	return rdma.WRRDMAWrite
}
