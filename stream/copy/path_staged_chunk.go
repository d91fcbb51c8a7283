package copy

import (
	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream"
)

const (
	// stagedChunks is into how many chunks a batch is cut at least, so that one is gathered while another crosses the bus,
	// and stagedLeast how short they may get by that: between two chunks the bus is idle for 3 us.
	stagedChunks = 4
	stagedLeast  = 1 << 20
	// stagedAhead is how many chunks are in flight before one is held back that is not full: while one crosses the bus, the
	// other waits for multiprocessors.
	stagedAhead = 2
)

// stageSpan is staging memory that a step may fill: room bytes of it with gaps, bytes without.
type stageSpan struct {
	at, bytes, room uint64
	end             uint64 // position to take and, later, to give back
}

// gathers reports whether o's chunks may hold other batches too: the planner said how large chunks should be.
func (o *op) gathers() bool {
	return o.path == stream.PathStaged && o.choice.ChunkBytes > 0
}

// room reserves staging memory for the next chunk, and descriptors for the pieces that it will have on average and some
// more: a chunk may end early for want of them.
//
// A batch is cut into several chunks, so that they overlap, unless the planner says how large a chunk is. It does so where a
// kernel that gathers waits long for multiprocessors that something else holds: each chunk costs that wait, whatever its
// size. Then batches that are too small wait for others to fill the chunk with, as long as enough is in flight before them.
func (p *staged) room(o *op) (span, bool) {
	var chunk uint64
	runs := p.mostRuns()
	if o.gathers() {
		full := min(uint64(o.choice.ChunkBytes), p.s.staging.maxChunk)
		if o.summed { // a chunk has room for a leaf, whatever was planned: see sums
			full = max(full, mem.LeafBytes)
		}
		if chunk = p.queued(o, full); chunk < full && p.s.chunks >= stagedAhead {
			return span{}, false
		}
	} else {
		chunk = min(max(uint64(o.stats.bytes)/stagedChunks, stagedLeast), uint64(o.stats.bytes-o.sent))
		runs = min(runs, o.stats.copies)
	}
	// Runs that are not aligned take a little more.
	at, room, end, ok := p.s.staging.reserve(chunk + uint64(runs)*2*stageAlign)
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

// queued returns how much is left of o and of those behind it that may share its chunk, but no more than most.
func (p *staged) queued(o *op, most uint64) uint64 {
	bytes := uint64(o.stats.bytes - o.sent)
	for next := o.following(); bytes < most && next != nil && next.shares(o); next = next.following() {
		bytes += uint64(next.stats.bytes)
	}
	return min(bytes, most)
}

// shares reports whether o may be in a chunk that begins with first: one kernel does it all.
func (o *op) shares(first *op) bool {
	return o.gathers() && o.stats.ways == first.stats.ways && o.summed == first.summed && !o.Canceled()
}

// join fills up the chunk that begins with first, which is the backlog's head, with batches behind it.
func (p *staged) join(first *op) {
	if !p.chunk.shared {
		return
	}
	for last := first; last.at.described() && p.chunk.left() > 0; {
		next := joins(first, last)
		if next == nil {
			return
		}
		bytes := p.chunk.add(next)
		if bytes == 0 {
			return
		}
		p.s.joined = append(p.s.joined, item{op: next, bytes: bytes, last: next.at.described()})
		last = next
	}
}

// following returns the batch behind o in the backlog, or nil.
func (o *op) following() *op {
	next, _ := o.Next().(*op)
	return next
}

// joins returns the batch behind last if that may be issued now, in one step with first.
func joins(first, last *op) *op {
	next := last.following()
	if next == nil || !next.shares(first) || !next.Ready() {
		return nil
	}
	return next
}
