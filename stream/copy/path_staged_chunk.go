package copy

import (
	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/mem"
)

const (
	// stagedChunks is into how many chunks a batch is cut at least, so that one is gathered while another crosses the bus,
	// and stagedLeast how short they may get by that: between two chunks the bus is idle for 3 us.
	stagedChunks = 4
	stagedLeast  = 1 << 20
)

// stageSpan is staging memory that a step may fill: room bytes of it with gaps, bytes without.
type stageSpan struct {
	at, bytes, room uint64
	end             uint64 // position to take and, later, to give back
}

// room reserves staging memory for the next chunk, and descriptors for the pieces that it will have on average and some
// more: a chunk may end early for want of them.
//
// A batch is cut into several chunks, so that they overlap, unless the planner says how large a chunk is. It does so where a
// kernel that gathers waits long for multiprocessors that something else holds: each chunk costs that wait, whatever its
// size.
func (p *staged) room(o *op) (span, bool) {
	chunk := max(uint64(o.stats.bytes)/stagedChunks, stagedLeast)
	if o.choice.ChunkBytes > 0 {
		if chunk = uint64(o.choice.ChunkBytes); o.summed { // a chunk has room for a leaf, whatever was planned: see sums
			chunk = max(chunk, mem.LeafBytes)
		}
	}
	chunk = min(chunk, p.s.staging.maxChunk, uint64(o.stats.bytes-o.sent))
	// Runs that are not aligned take a little more.
	at, room, end, ok := p.s.staging.reserve(chunk + uint64(min(p.mostRuns(), o.stats.copies))*2*stageAlign)
	if !ok {
		return span{}, false
	}
	piece := min(max(uint64(o.stats.bytes)/uint64(o.stats.copies), 1), device.PieceBytes)
	if o.summed {
		piece = min(piece, mem.LeafBytes)
	}
	sp, ok := p.s.ring.reserve(descSpace(int(chunk/piece*5/4+64), o.summed))
	sp.stage = stageSpan{at: at, bytes: min(chunk, room), room: room, end: end}
	return sp, ok
}
