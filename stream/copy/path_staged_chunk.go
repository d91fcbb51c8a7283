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

// stageAlign is what the start of a run in staging memory is aligned to, but for what the pages' own addresses have over it:
// kernels copy 16 bytes at a time where both sides allow.
const stageAlign = 16

// stageSpan is staging memory that a step may fill: room bytes of it with gaps, bytes without.
type stageSpan struct {
	at, bytes, room uint64
	end             uint64 // position to take and, later, to give back
}

// gathers reports whether o's chunks may hold other batches too: the planner said how large chunks should be.
func (o *op) gathers() bool {
	return o.control == nil && o.path == stream.PathStaged && o.choice.ChunkBytes > 0
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
	average := max(o.stats.bytes/int64(o.stats.copies), 1)
	descs := chunk/min(uint64(average), device.PieceBytes)*5/4 + 64
	sp, ok := p.s.ring.reserve(descs * device.CopyDescBytes)
	sp.stage = stageSpan{at: at, bytes: min(chunk, room), room: room, end: end}
	return sp, ok
}

// queued returns how much is left of o and of those behind it that may share its chunk, but no more than most. The caller
// holds Stream.mu.
func (p *staged) queued(o *op, most uint64) uint64 {
	bytes := uint64(o.stats.bytes - o.sent)
	for next := o.next; bytes < most && next != nil && next.shares(o); next = next.next {
		bytes += uint64(next.stats.bytes)
	}
	return min(bytes, most)
}

// shares reports whether o may be in a chunk that begins with first.
func (o *op) shares(first *op) bool {
	return o.gathers() && o.stats.ways == first.stats.ways && !o.canceled.Load()
}

// join fills up the chunk that begins with first, which is the backlog's head, with batches behind it.
func (p *staged) join(first *op) {
	if !p.chunk.shared {
		return
	}
	for last := first; last.at.over() && p.chunk.left() > 0; {
		next := p.s.joins(first, last)
		if next == nil {
			return
		}
		bytes := p.chunk.add(next)
		if bytes == 0 {
			return
		}
		p.s.joined = append(p.s.joined, item{op: next, bytes: bytes, last: next.at.over()})
		last = next
	}
}

// joins returns the batch behind last if that may be issued now, in one step with first.
func (s *Stream) joins(first, last *op) *op {
	s.mu.Lock()
	next := last.next
	ok := next != nil && next.shares(first) && s.mustStop(next) == nil
	s.mu.Unlock()
	if !ok {
		return nil
	}
	if unmet, err := next.unmet(); unmet != nil || err != nil {
		return nil
	}
	return next
}

// chunk is what one step of the staged path carries.
type chunk struct {
	area  *mem.Region
	stage stageSpan
	buf   []byte // for descriptors
	descs int
	used  uint64 // of staging memory, with gaps
	bytes uint64 // without
	// host and part are where the runs lie in host and in staging memory. hostEnd, of no bytes, is where a neighbour of the
	// last would start.
	host, part []mem.Extent
	runs       int
	hostEnd    mem.Extent
	// batches is how many the chunk is of; shared says that there may be several, and written what they write.
	batches uint32
	shared  bool
	written claims
	full    bool
}

// begin empties the chunk.
func (c *chunk) begin(area *mem.Region, sp span, shared bool) {
	*c = chunk{area: area, stage: sp.stage, buf: sp.buf, host: c.host, part: c.part, shared: shared, written: c.written}
	if shared {
		c.written.begin()
	}
}

// left returns how many bytes the chunk still takes, if they are not scattered too much.
func (c *chunk) left() uint64 {
	if c.full || len(c.buf) < device.CopyDescBytes || c.used >= c.stage.room {
		return 0
	}
	return min(c.stage.bytes-c.bytes, c.stage.room-c.used)
}

// add describes as much of o as fits, and returns how many bytes that is.
func (c *chunk) add(o *op) (bytes int64) {
	toHost := o.stats.ways == wayD2H
	c.batches++
	for c.left() > 0 {
		dst, src, ok := o.at.peek()
		if !ok {
			break
		}
		host, page := src, dst
		if toHost {
			host, page = dst, src
		}
		if !c.follow(host, page) {
			break
		}
		n := min(page.Len, device.PieceBytes, int64(c.left()))
		dst.Len = n
		if c.shared && !c.written.claim(dst, c.batches) {
			c.full = true
			break
		}
		o.at.cut(n)
		to, from := uint64(page.Dev()), uint64(c.area.Dev())+c.stage.at+c.used
		if toHost {
			to, from = from, to
		}
		putCopy(c.buf, to, from, uint64(n))
		c.buf = c.buf[device.CopyDescBytes:]
		c.descs++
		c.host[c.runs-1].Len += n
		c.part[c.runs-1].Len += n
		c.hostEnd = mem.Extent{Region: host.Region, Off: host.Off + n}
		c.used += uint64(n)
		c.bytes += uint64(n)
		bytes += n
	}
	o.at.peek() // so that over tells
	return bytes
}

// follow lets the next piece be of the last run, or begins another. It returns false where no more runs fit.
func (c *chunk) follow(host, page mem.Extent) bool {
	if c.runs > 0 && follows(c.hostEnd, host) {
		return true
	}
	start := align(c.used, stageAlign) + uint64(page.Dev())%stageAlign
	if c.runs == len(c.host) || start >= c.stage.room {
		return false
	}
	c.used = start
	c.host[c.runs] = mem.Extent{Region: host.Region, Off: host.Off}
	c.part[c.runs] = mem.Extent{Region: c.area, Off: int64(c.stage.at + c.used)}
	c.runs++
	return true
}
