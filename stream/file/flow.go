package file

import (
	"context"
	"errors"

	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream"
)

// move moves the batch. It returns when no hardware accesses the batch's memory any longer.
func (b *batch) move() error {
	s := b.stream
	if len(b.cut.pieces) == 0 {
		return nil
	}
	var err error
	if b.by, err = s.choose(b); err != nil {
		return err
	}
	b.cut.whole = b.by.device != nil
	for {
		chunk, space := b.issue()
		b.takeDone()
		head := b.takeCopied()
		if b.over() {
			return b.verdict()
		}
		ended := b.ctx.Done()
		if b.ctx.Err() != nil {
			ended = nil
		}
		select {
		case <-b.wake:
		case <-head:
		case <-ended:
		case e := <-chunk:
			b.stage(e)
		case space <- struct{}{}:
			b.begin(false) // issue begins further transfers and sends all of them
		}
	}
}

// over reports whether nothing of the batch is in flight or left to do.
func (b *batch) over() bool {
	if b.inFlight.Load() != 0 || len(b.crossing) != 0 {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.done) != 0 {
		return false
	}
	return b.cut.empty() && b.current == nil && len(b.ready) == 0
}

// issue begins transfers until it would have to wait. It returns a channel chunk if it needs a free
// chunk to continue, and space if it needs space for another transfer. If the batch has ended,
// issue drops everything that has not begun.
func (b *batch) issue() (chunk <-chan mem.Extent, space chan<- struct{}) {
	s := b.stream
	defer b.flush()
	for {
		if b.ctx.Err() != nil {
			b.abandon()
			return nil, nil
		}
		switch {
		case b.current != nil:
			if !b.admits(b.current) {
				return nil, nil // a finished transfer wakes the goroutine
			}
			if b.joins(b.current) {
				b.begin(true)
				continue
			}
			select {
			case s.space <- struct{}{}:
				b.begin(false)
			default:
				return nil, s.space
			}
		case len(b.ready) > 0:
			b.current, b.ready = b.ready[0], b.ready[1:]
		case b.cut.empty():
			return nil, nil
		case b.cut.straight():
			b.current = b.cut.nextStraight(b)
		default:
			slow, err := s.staging.ready()
			if err != nil {
				b.fail(err)
				continue
			}
			if slow != nil {
				s.stats.unregistered.Add(1)
				b.by.givenUp = errors.Join(b.by.givenUp, slow)
			}
			select {
			case e := <-s.staging.free:
				b.stage(e)
			default:
				return s.staging.free, nil
			}
		}
	}
}

// admits reports whether another transfer of p may begin. The limit is the depth that was measured
// as fastest for the disk. It does not apply to reads that try the page cache while these succeed.
func (b *batch) admits(p *part) bool {
	return b.by.depth == 0 || int(b.inFlight.Load()) < b.by.depth || b.triesCache(p) && b.stream.warm.hot.Load()
}

// triesCache reports whether p's next transfer may try the page cache first.
func (b *batch) triesCache(p *part) bool {
	t := &p.transfers[p.begun]
	return t.mem.Region.CPU() != 0 && b.stream.triesCache(t.file, p.write)
}

// triesCache reports whether a transfer of f may try the page cache first.
func (s *Stream) triesCache(f *File, write bool) bool {
	return !write && f.fd >= 0 && s.opts.Path == stream.PathNone
}

// cachedBytes is the maximum length of a transfer into a chunk while reads hit the page cache.
// Shorter transfers are not slower in total in that case. Several of them fill a chunk
// concurrently, so that it is copied earlier and less is left to copy after the last read.
const cachedBytes = 256 << 10

// grain returns the maximum length of a transfer between p's file and a chunk.
func (b *batch) grain(p *piece) int64 {
	if b.stream.triesCache(p.file, p.write) && b.stream.warm.hot.Load() {
		return cachedBytes
	}
	return b.cut.most
}

// stage creates the next part, with the given chunk. Data to write are first gathered in the chunk.
func (b *batch) stage(chunk mem.Extent) {
	p := b.cut.nextStaged(b, chunk)
	p.pending.Store(int32(len(p.transfers)))
	if p.write {
		b.copy(p)
	} else {
		b.ready = append(b.ready, p)
	}
}

// begin begins the next transfer of the current part. If joins is set, the transfer joins the
// sweep. Otherwise the caller has reserved space for it.
func (b *batch) begin(joins bool) {
	p := b.current
	t := &p.transfers[p.begun]
	t.try = joins || b.triesCache(p) && b.stream.warm.try()
	if p.begun++; p.begun == len(p.transfers) {
		b.current = nil
	}
	t.home = b.by.queueOf(b.stream, t)
	if joins {
		b.sweep.add(t)
		return
	}
	b.inFlight.Add(1)
	if !t.try {
		t.begin(t.home)
		return
	}
	b.send()
	b.sweep = new(sweep)
	b.sweep.add(t)
}

// joins reports whether p's next transfer joins the sweep. While reads hit the page cache, waking a
// worker takes longer than a small read.
func (b *batch) joins(p *part) bool {
	return b.sweep != nil && b.stream.warm.hot.Load() && b.triesCache(p) && b.sweep.hasSpace(&p.transfers[p.begun])
}

// send passes the sweep to a worker.
func (b *batch) send() {
	if s := b.sweep; s != nil {
		b.sweep = nil
		s.left.Store(s.n)
		b.inFlight.Add(s.n - 1) // begin has counted the first one
		s.first.begin(b.stream.workers)
	}
}

// flush submits all begun transfers.
func (b *batch) flush() {
	b.send()
	b.by.flush()
}

// finish records n finished transfers of p, or of several parts without chunks. s is their sweep,
// or nil.
func (b *batch) finish(p *part, s *sweep, n int32) {
	if s == nil || s.left.Add(-n) == 0 {
		<-b.stream.space
	}
	b.finishPart(p, n)
	// Do not use b after this: its goroutine may return once no transfer is left.
	if b.inFlight.Add(-n) == 0 || b.by.depth > 0 {
		b.signal()
	}
}

// finishPart records n finished transfers of p. If p has a chunk and no unfinished transfers,
// finishPart queues p for takeDone.
func (b *batch) finishPart(p *part, n int32) {
	if p.straight || p.pending.Add(-n) != 0 {
		return
	}
	b.mu.Lock()
	b.done = append(b.done, p)
	b.mu.Unlock()
	b.signal()
}

func (b *batch) signal() {
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// takeDone copies finished reads from their chunks and releases the chunks of finished writes.
func (b *batch) takeDone() {
	b.mu.Lock()
	done := b.done
	b.done = nil
	b.mu.Unlock()
	for _, p := range done {
		switch {
		case p.write:
			b.release(p)
		case b.ctx.Err() != nil:
			b.stop()
			b.release(p)
		default:
			b.copy(p)
		}
	}
}

// copied continues with p after its copy. It releases the chunk of a read, and makes the transfers
// of a write ready.
func (b *batch) copied(p *part) {
	switch {
	case !p.write:
		b.release(p)
	case b.ctx.Err() != nil:
		b.stop()
		b.release(p)
	default:
		b.ready = append(b.ready, p)
		b.signal()
	}
}

// release returns p's chunk to the free list.
func (b *batch) release(p *part) {
	if p.chunk.Region != nil {
		b.stream.staging.free <- p.chunk
		p.chunk.Region = nil
	}
}

// abandon drops everything that has not begun. The batch has ended.
func (b *batch) abandon() {
	if b.current == nil && len(b.ready) == 0 && b.cut.empty() {
		return
	}
	b.stop()
	for _, p := range b.ready {
		b.release(p)
	}
	b.ready, b.cut.pieces = nil, nil
	if p := b.current; p != nil {
		b.current = nil
		b.finishPart(p, int32(len(p.transfers)-p.begun))
	}
}

// stop fails a batch that ended before it was completely moved.
func (b *batch) stop() { b.fail(context.Cause(b.ctx)) }
