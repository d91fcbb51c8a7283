package soft

import "github.com/kvlane/kvlane/mem"

// nearby knows which memory the transfer that is being filled reads and writes, so that no copy of a transfer overlaps
// another's destination. It knows it by blocks of blockBytes: what is nearer than that counts as overlapping, which costs
// a transfer more and no correctness. Addresses of different devices that are alike count as the same, for the same price.
//
// Where all copies go the same way, between host and device, no source can overlap a destination. Sources are then not noted.
type nearby struct {
	table []area // open addressing; its length is a power of two
	epoch uint32 // entries of other epochs are free
	used  int
	way   way // of the transfer's copies
}

// way is where copies go.
type way uint8

const (
	noWay way = iota
	toDevice
	fromDevice
	bothWays // or within either; sources are noted
)

func wayOf(dst, src *mem.Region) way {
	switch to, from := dst.Kind() == mem.KindDevice, src.Kind() == mem.KindDevice; {
	case to && !from:
		return toDevice
	case from && !to:
		return fromDevice
	}
	return bothWays
}

func wayOfAll(dst, src []mem.Extent) way {
	w := noWay
	for i := range dst {
		w |= wayOf(dst[i].Region, src[i].Region)
	}
	return w
}

// area is what the transfer does with 64 neighbouring blocks, one bit a block.
type area struct {
	number        uint64
	epoch         uint32
	writes, reads uint64
}

const (
	blockShift = 9
	blockBytes = 1 << blockShift
	areaShift  = blockShift + 6
	slotBits   = 13
	areaSlots  = 1 << slotBits
	areaLimit  = areaSlots / 2 // as many as a transfer of the default length has, if no two lie together
)

// forget starts a new transfer.
func (n *nearby) forget() {
	n.used, n.way = 0, noWay
	if n.epoch++; n.epoch == 0 {
		clear(n.table)
		n.epoch = 1
	}
}

// blocks walks over the areas of an extent. An area is 64 neighbouring blocks; bits are those of number that the extent
// has a part in.
type blocks struct{ next, last uint64 }

func blocksOf(e mem.Extent) blocks {
	a := address(e)
	return blocks{a >> blockShift, (a + uint64(e.Len) - 1) >> blockShift}
}

func (b *blocks) more() bool { return b.next <= b.last }

func (b *blocks) step() (number, bits uint64) {
	number, bits = b.next>>6, ^uint64(0)<<(b.next&63)
	if b.last>>6 == number {
		bits &= ^uint64(0) >> (63 - b.last&63)
	}
	b.next = number<<6 + 64
	return number, bits
}

// find returns the entry of an area, which is free where the area has none.
func (n *nearby) find(number uint64) *area {
	const fibonacci = 0x9e3779b97f4a7c15
	for i := number * fibonacci >> (64 - slotBits); ; i = (i + 1) & (areaSlots - 1) {
		if a := &n.table[i]; a.epoch != n.epoch || a.number == number {
			return a
		}
	}
}

// conflicts reports whether a request with these copies must not share the transfer with those marked, or whether there
// is no room to know.
func (n *nearby) conflicts(dst, src []mem.Extent) bool {
	if n.used == 0 {
		return false
	}
	if n.used > areaLimit {
		return true
	}
	for i := range dst {
		if dst[i].Len == 0 {
			continue
		}
		for b := blocksOf(dst[i]); b.more(); {
			number, bits := b.step()
			if a := n.find(number); a.epoch == n.epoch && (a.writes|a.reads)&bits != 0 {
				return true
			}
		}
		if n.way != bothWays {
			continue
		}
		for b := blocksOf(src[i]); b.more(); {
			number, bits := b.step()
			if a := n.find(number); a.epoch == n.epoch && a.writes&bits != 0 {
				return true
			}
		}
	}
	return false
}

// add is the opposite of conflicts, and mark, for one copy. Where it answers false some of it may be marked: the transfer should take
// nothing more.
func (n *nearby) add(dst, src mem.Extent) bool {
	if n.used > areaLimit {
		return false
	}
	for b := blocksOf(dst); b.more() && n.used <= areaLimit; {
		number, bits := b.step()
		a := n.claim(number)
		if (a.writes|a.reads)&bits != 0 {
			return false
		}
		a.writes |= bits
	}
	if n.way != bothWays {
		return true
	}
	for b := blocksOf(src); b.more() && n.used <= areaLimit; {
		number, bits := b.step()
		a := n.claim(number)
		if a.writes&bits != 0 {
			return false
		}
		a.reads |= bits
	}
	return true
}

// mark adds the copies of a request. A request too large to be known leaves no room for another.
func (n *nearby) mark(dst, src []mem.Extent) {
	for i := range dst {
		if dst[i].Len == 0 {
			continue
		}
		for b := blocksOf(dst[i]); b.more() && n.used <= areaLimit; {
			number, bits := b.step()
			n.claim(number).writes |= bits
		}
		if n.way == bothWays {
			n.read(src[i])
		}
	}
}

// read adds a source.
func (n *nearby) read(src mem.Extent) {
	for b := blocksOf(src); b.more() && n.used <= areaLimit; {
		number, bits := b.step()
		n.claim(number).reads |= bits
	}
}

// begin marks the first request of a transfer.
func (n *nearby) begin(dst, src []mem.Extent) {
	n.way = wayOfAll(dst, src)
	n.mark(dst, src)
}

// mix has sources noted from now on, and those that the transfer has.
func (n *nearby) mix(t *Transfer) {
	n.way = bothWays
	for _, src := range t.src {
		n.read(src)
	}
	for i := range t.grid.pairs {
		_, src := t.grid.at(i)
		n.read(src)
	}
}

// claim returns the entry of an area, made if there was none.
func (n *nearby) claim(number uint64) *area {
	a := n.find(number)
	if a.epoch != n.epoch {
		*a = area{number: number, epoch: n.epoch}
		n.used++
	}
	return a
}

func newNearby() nearby { return nearby{table: make([]area, areaSlots), epoch: 1} }
