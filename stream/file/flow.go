package file

import (
	"context"
	"errors"

	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream"
)

// move moves the batch, and returns when nothing touches its memory any more.
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
		chunk, room := b.issue()
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
		case room <- struct{}{}:
			b.begin(false) // issue has more join it, and sends all
		}
	}
}

// over reports whether nothing is left to do, or may be done, and nothing is in flight.
func (b *batch) over() bool {
	if b.flying.Load() != 0 || len(b.crossing) != 0 {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.done) != 0 {
		return false
	}
	return b.cut.empty() && b.current == nil && len(b.ready) == 0
}

// issue begins what can be begun without waiting. chunk is not nil if it needs one to go on, room if it needs room for a
// transfer. A batch that has ended lets go of what has not begun.
func (b *batch) issue() (chunk <-chan mem.Extent, room chan<- struct{}) {
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
				return nil, nil // a transfer that ends wakes us
			}
			if b.joins(b.current) {
				b.begin(true)
				continue
			}
			select {
			case s.room <- struct{}{}:
				b.begin(false)
			default:
				return nil, s.room
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

// admits reports whether another transfer of p may be unfinished: as many as the disk is fastest with, but for reads that look in the page
// cache while that has what they ask for.
func (b *batch) admits(p *part) bool {
	return b.by.depth == 0 || int(b.flying.Load()) < b.by.depth || b.looks(p) && b.stream.warm.hot.Load()
}

// looks reports whether p's next transfer may be found in the page cache first.
func (b *batch) looks(p *part) bool {
	t := &p.transfers[p.begun]
	return t.mem.Region.CPU() != 0 && b.stream.looks(t.file, p.write)
}

// looks reports whether what a transfer of f asks for may be found in the page cache first.
func (s *Stream) looks(f *File, write bool) bool {
	return !write && f.fd >= 0 && s.opts.Path == stream.PathNone
}

// cachedBytes is how long a transfer into a chunk is while the page cache answers: that takes no longer in all for being in more parts, and several
// fill a chunk at once, so that it crosses earlier and little is left to cross when all is read.
const cachedBytes = 256 << 10

// grain is how long a transfer between p's file and a chunk is at most.
func (b *batch) grain(p *piece) int64 {
	if b.stream.looks(p.file, p.write) && b.stream.warm.hot.Load() {
		return cachedBytes
	}
	return b.cut.most
}

// stage makes the next part, which has that chunk. What is written is gathered first.
func (b *batch) stage(chunk mem.Extent) {
	p := b.cut.nextStaged(b, chunk)
	p.pending.Store(int32(len(p.transfers)))
	if p.write {
		b.copy(p)
	} else {
		b.ready = append(b.ready, p)
	}
}

// begin begins the current part's next transfer. It joins the sweep, or there is room for it.
func (b *batch) begin(joins bool) {
	p := b.current
	t := &p.transfers[p.begun]
	t.try = joins || b.looks(p) && b.stream.warm.try()
	if p.begun++; p.begun == len(p.transfers) {
		b.current = nil
	}
	t.home = b.by.queueOf(b.stream, t)
	if joins {
		b.sweep.add(t)
		return
	}
	b.flying.Add(1)
	if !t.try {
		t.begin(t.home)
		return
	}
	b.send()
	b.sweep = new(sweep)
	b.sweep.add(t)
}

// joins reports whether p's next transfer goes with those of the sweep: while the page cache answers, to wake a worker takes longer than to read
// little.
func (b *batch) joins(p *part) bool {
	return b.sweep != nil && b.stream.warm.hot.Load() && b.looks(p) && b.sweep.takes(&p.transfers[p.begun])
}

// send gives the sweep to a worker.
func (b *batch) send() {
	if s := b.sweep; s != nil {
		b.sweep = nil
		s.left.Store(s.n)
		b.flying.Add(s.n - 1) // those that joined the first
		s.first.begin(b.stream.workers)
	}
}

// flush has everything that was begun be under way.
func (b *batch) flush() {
	b.send()
	b.by.flush()
}

// landed is called when n transfers are finished, which are of sweep s if that is not nil: p's, or of several parts without chunks.
func (b *batch) landed(p *part, s *sweep, n int32) {
	if s == nil || s.left.Add(-n) == 0 {
		<-b.stream.room
	}
	b.settle(p, n)
	// The last that is done with b: its goroutine may be gone afterwards.
	if b.flying.Add(-n) == 0 || b.by.depth > 0 {
		b.poke()
	}
}

// settle takes n from what p waits for, and notes that nothing is left, where it has a chunk to go on with.
func (b *batch) settle(p *part, n int32) {
	if p.straight || p.pending.Add(-n) != 0 {
		return
	}
	b.mu.Lock()
	b.done = append(b.done, p)
	b.mu.Unlock()
	b.poke()
}

func (b *batch) poke() {
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// takeDone takes what was read to where it belongs, and gives back the chunks of what was written.
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

// copied goes on with p.
func (b *batch) copied(p *part) {
	switch {
	case !p.write:
		b.release(p)
	case b.ctx.Err() != nil:
		b.stop()
		b.release(p)
	default:
		b.ready = append(b.ready, p)
		b.poke()
	}
}

// release gives p's chunk back.
func (b *batch) release(p *part) {
	if p.chunk.Region != nil {
		b.stream.staging.free <- p.chunk
		p.chunk.Region = nil
	}
}

// abandon lets go of what has not begun: the batch has ended.
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
		b.settle(p, int32(len(p.transfers)-p.begun))
	}
}

// stop is fail for what was left out of a batch that has ended.
func (b *batch) stop() { b.fail(context.Cause(b.ctx)) }
