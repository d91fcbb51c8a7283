package log

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/dirfs"
	"github.com/kvlane/kvlane/tier"
	"github.com/kvlane/kvlane/tier/internal/blockdir"
)

// errNoRoom says that the bound has no room for another segment now.
var errNoRoom = errors.New("the bound has no room for another segment")

// pending is a record that is to be written.
type pending struct {
	record
	data []byte // whose bytes it has: an image, or its shards
	from place  // of a block that is moved
	at   tier.Place
	err  error
	put  *putting // whose it is; nil of what is not put
}

// putting is what one caller puts.
type putting struct {
	left int // guarded by queue.mu
	done chan struct{}
}

// appender writes groups, one at a time, to the end of a segment of its own. Writes to one file wait for each other in most file systems,
// so that several segments are appended to where there is much to write. Whoever takes it has it alone, until leave.
type appender struct {
	t       *Tier
	home    chan *appender
	number  uint32   // of head, or of the segment that is being made; 0: of none. Guarded by t.order
	head    *segment // nil until something is written
	writer  writer
	parts   [][]byte
	headers []byte // a group's header is made here
}

func (a *appender) leave() { a.home <- a }

// lowestHead is the number of the first segment that something may be appended to yet.
func (t *Tier) lowestHead() uint32 {
	t.order.Lock()
	defer t.order.Unlock()
	lowest := uint32(math.MaxUint32)
	for _, a := range t.appenders {
		if a.number != 0 {
			lowest = min(lowest, a.number)
		}
	}
	return lowest
}

// pend makes the record of an image that has been verified.
func (t *Tier) pend(p *pending, key block.Key, image []byte) error {
	g := t.formats.Group(key)
	f := t.formats[g]
	h, err := f.Verified(image)
	if err != nil {
		return err
	}
	p.record = record{key: key, kind: kindOf(f), group: uint8(g), algo: h.SumAlgo}
	p.data = image
	p.at = t.places.Load().Place(key)
	p.position = uint32(min(p.at.Position, math.MaxUint32))
	if p.kind == compact {
		p.data = image[f.Layout.HeaderBytes():]
		p.sums = make([]uint64, h.Shards())
		for i := range p.sums {
			_, _, p.sums[i] = h.Shard(i)
		}
	}
	return nil
}

// commit has what is put written together with what others put at the same time: whoever comes first writes for all who wait, and while
// besideBytes wait, others beside him. A write that has begun is finished whatever becomes of its callers; what waits leaves with ctx.
func (t *Tier) commit(ctx context.Context, w *putting, recs []*pending) {
	t.queue.mu.Lock()
	t.queue.recs = append(t.queue.recs, recs...)
	for _, p := range recs {
		t.queue.bytes += int64(len(p.data))
	}
	t.queue.mu.Unlock()
	for {
		first, others := t.first, t.others
		t.queue.mu.Lock()
		if len(t.queue.recs) == 0 {
			first = nil // somebody writes what is left of w
		}
		if t.queue.bytes < t.cfg.besideBytes() || len(t.first) > 0 {
			others = nil
		}
		t.queue.mu.Unlock()
		var a *appender
		select {
		case <-w.done:
			return
		case a = <-first:
		case a = <-others:
		case <-ctx.Done():
			t.withdraw(w, queued(ctx))
			ctx = context.WithoutCancel(ctx)
			continue
		}
		a.commitGroup()
		a.leave()
	}
}

// queued says that what is to be written was still behind others when ctx ended.
func queued(ctx context.Context) error {
	return fmt.Errorf("a write before it has not ended: %w: %w", errdefs.ErrBusy, context.Cause(ctx))
}

// withdraw takes out of the queue what nobody writes yet.
func (t *Tier) withdraw(w *putting, cause error) {
	t.queue.mu.Lock()
	defer t.queue.mu.Unlock()
	waiting := len(t.queue.recs)
	t.queue.recs = slices.DeleteFunc(t.queue.recs, func(p *pending) bool {
		if p.put != w {
			return false
		}
		p.err = cause
		t.queue.bytes -= int64(len(p.data))
		return true
	})
	if n := waiting - len(t.queue.recs); n > 0 {
		if w.left -= n; w.left == 0 {
			close(w.done)
		}
	}
}

// commitGroup writes one group of what is queued.
func (a *appender) commitGroup() {
	t := a.t
	t.queue.mu.Lock()
	n := fitting(t.formats, t.queue.recs, t.cfg.groupBytes)
	recs := t.queue.recs[:n:n]
	t.queue.recs = t.queue.recs[n:]
	if len(t.queue.recs) == 0 {
		t.queue.recs = nil
	}
	for _, p := range recs {
		t.queue.bytes -= int64(len(p.data))
	}
	t.queue.mu.Unlock()
	a.appendAll(recs, false)
	t.queue.mu.Lock()
	defer t.queue.mu.Unlock()
	for _, p := range recs {
		if p.put.left--; p.put.left == 0 {
			close(p.put.done)
		}
	}
}

// fitting says how many of recs make a group of at most so many bytes, one at least.
func fitting(formats block.Formats, recs []*pending, bytes int64) int {
	head, data := int64(offTable+sumBytes), int64(0)
	var seen [block.MaxGroups]bool
	for i, p := range recs {
		head += recordBytes + 8*int64(len(p.sums))
		if p.kind != deleted && !seen[p.group] {
			seen[p.group] = true
			head += describedBytes(formats[p.group])
		}
		data += int64(len(p.data))
		if i > 0 && (pages(head)*page+data > bytes || pages(head)*page > maxHeader) {
			return i
		}
	}
	return len(recs)
}

// headerOf is the length of the header of a group of recs.
func headerOf(formats block.Formats, recs []*pending) int64 {
	head := int64(offTable + sumBytes)
	var seen [block.MaxGroups]bool
	for _, p := range recs {
		head += recordBytes + 8*int64(len(p.sums))
		if p.kind != deleted && !seen[p.group] {
			seen[p.group] = true
			head += describedBytes(formats[p.group])
		}
	}
	return pages(head) * page
}

// appendAll writes recs as one group, or as two where a segment ends between them; mover says that they are moved out of other segments,
// or delete blocks. What failed is in each record.
func (a *appender) appendAll(recs []*pending, mover bool) {
	for len(recs) > 0 {
		n := len(recs)
		err := a.makeHead(recs, mover)
		if err == nil {
			n = fitting(a.t.formats, recs, a.head.limit-a.head.end.Load())
			err = a.appendGroup(recs[:n])
		}
		for _, p := range recs[:n] {
			p.err = err
		}
		recs = recs[n:]
	}
}

// makeHead makes sure that the head has room for the first of recs.
func (a *appender) makeHead(recs []*pending, mover bool) error {
	t := a.t
	need := headerOf(t.formats, recs[:1]) + int64(len(recs[0].data))
	if a.head != nil && !a.head.broken.Load() && a.head.end.Load()+need <= a.head.limit {
		return nil
	}
	if err := a.seal(); err != nil {
		t.count.errors.Add(1)
	}
	now := t.clock.Now()
	bytes, took := t.room.take(now, mover)
	if !mover && t.room.excess() > 0 { // the collector does not call itself: where all is retained there would be no pause
		t.collectSoon()
	}
	if !took {
		return errNoRoom
	}
	if err := a.newSegment(bytes, page+need); err != nil {
		t.room.add(-bytes)
		return blockdir.WriteError(err)
	}
	t.room.add(a.head.limit - bytes)
	return nil
}

// nextNumber gives the appender the number of another segment.
func (a *appender) nextNumber() uint32 {
	a.t.order.Lock()
	defer a.t.order.Unlock()
	if a.number = 0; a.t.last < math.MaxUint32 {
		a.t.last++
		a.number = a.t.last
	}
	return a.number
}

// newSegment creates the file of a new segment and makes its name durable. If the disk has less
// space than the segment needs, the segment is shorter, but not shorter than least.
func (a *appender) newSegment(bytes, least int64) error {
	t := a.t
	t.making <- struct{}{}
	defer func() { <-t.making }()
	for {
		number := a.nextNumber()
		if number == 0 {
			return fmt.Errorf("make a segment: all numbers are used up: %w", errdefs.ErrNoSpace)
		}
		name := segmentName(number)
		f, err := t.dir.Open(name, os.O_RDWR|os.O_CREATE|os.O_EXCL)
		if blockdir.Gone(err) {
			return fmt.Errorf("make a segment in the directory: %w; close the log and open it again: %w", errRemoved, err)
		}
		if errors.Is(err, unix.EEXIST) {
			continue // somebody else's
		}
		if err != nil {
			return err
		}
		limit, err := allocate(f, bytes, least)
		if err == nil {
			err = a.beginSegment(f)
		}
		if err != nil {
			return errors.Join(err, f.Close(), blockdir.Remove(t.dir, name))
		}
		a.head = &segment{number: number, file: f, limit: limit}
		a.head.end.Store(page)
		a.head.synced.Store(page)
		a.head.size.Store(limit)
		t.segments.add(a.head)
		return nil
	}
}

// beginSegment writes a group of nothing, by which a segment is known whatever becomes of the next, and makes it and the name durable.
func (a *appender) beginSegment(f dirfs.File) error {
	t := a.t
	if a.headers == nil {
		a.headers = make([]byte, maxHeader)
	}
	h := t.newHeader(position{segment: uint64(a.number)}, page)
	h.groupBytes = page
	h.encode(a.headers[:page], t.formats)
	if err := a.writer.writeAt(f, [][]byte{a.headers[:page]}, 0); err != nil || t.cfg.Fsync == FsyncNever {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	return blockdir.SyncRoot(t.dir)
}

// newHeader begins a group.
func (t *Tier) newHeader(at position, bytes int64) header {
	turn := position{t.epoch, t.turns.Add(1)}
	return header{bytes: bytes, at: at, synced: t.syncedTo(), turn: turn, directory: t.id}
}

// sealAll ends every segment that is appended to.
func (t *Tier) sealAll() error {
	t.sealing <- struct{}{}
	defer func() { <-t.sealing }()
	var errs []error
	for _, a := range t.appenders { // as many as there are
		a = <-a.home
		defer a.leave()
		errs = append(errs, a.seal())
	}
	return errors.Join(errs...)
}

// seal ends the head: nothing is appended to it any more.
func (a *appender) seal() error {
	t, g := a.t, a.head
	if g == nil {
		return nil
	}
	a.head = nil
	defer func() {
		g.sealed.Store(true)
		t.order.Lock()
		a.number = 0
		t.order.Unlock()
	}()
	end := g.end.Load()
	if end <= page { // nothing was written, or could be
		t.room.add(-g.size.Swap(0))
		return errors.Join(t.segments.remove(g), blockdir.Remove(t.dir, segmentName(g.number)))
	}
	err := truncate(g.file, end)
	t.room.add(end - g.size.Swap(end))
	return err
}

// appendGroup writes a group at the end of the head, makes it durable by the policy and enters it in the index, or leaves nothing.
func (a *appender) appendGroup(recs []*pending) error {
	t, g, off := a.t, a.head, a.head.end.Load()
	h := t.newHeader(position{uint64(g.number), off}, headerOf(t.formats, recs))
	h.groupBytes = h.bytes
	h.records = make([]record, 0, len(recs))
	parts := append(a.parts[:0], a.headers[:h.bytes])
	for _, p := range recs {
		h.records = append(h.records, p.record)
		if len(p.data) > 0 {
			parts = append(parts, p.data)
			h.groupBytes += int64(len(p.data))
		}
	}
	h.encode(parts[0], t.formats)
	err := a.writer.writeAt(g.file, parts, off)
	clear(parts)
	a.parts = parts[:0]
	if err == nil && t.cfg.Fsync == FsyncAlways {
		if err = g.file.Sync(); err != nil {
			t.breaks(g)
		}
	}
	if err == nil {
		err = g.checkName()
	}
	if err != nil {
		return errors.Join(blockdir.WriteError(err), a.undo(off))
	}
	t.order.Lock()
	at := off + h.bytes
	for _, p := range recs {
		a.enter(p, place{g.number, uint32(at / page), uint16((at - off) / page)})
		at += int64(len(p.data))
	}
	g.end.Store(at)
	t.order.Unlock()
	t.written.Add(at - off)
	t.bytesUp()
	switch t.cfg.Fsync {
	case FsyncAlways:
		g.synced.Store(at)
		if t.lowestHead() == g.number {
			t.setSynced(position{uint64(g.number), at})
		}
	case FsyncInterval:
		t.syncSoon(at - off)
	case FsyncNever:
	}
	return nil
}

// undo makes sure that a group that could not be written is not found later, as far as that can be done, and ends the segment.
func (a *appender) undo(off int64) error {
	t, g := a.t, a.head
	_, err := g.file.WriteAt(t.zeros[:], off) // where it cannot be cut
	if t.cfg.Fsync != FsyncNever {
		if err = errors.Join(err, g.file.Sync()); err != nil {
			t.breaks(g)
		}
	}
	return errors.Join(err, a.seal())
}

// enter brings a record that was written into the index. The caller holds t.order: a checkpoint that covers the record sees what it did.
func (a *appender) enter(p *pending, at place) {
	t := a.t
	if p.kind == deleted {
		a.head.deletes.Store(true)
		if e, ok := t.table.remove(p.key, func(entry) bool { return true }); ok {
			t.gone(e)
		}
		return
	}
	n := int64(len(p.data))
	if p.from.segment != 0 {
		if was, ok := t.table.move(p.key, p.from, at, seen); ok {
			t.drop(was, n)
			a.head.add(n, rank64(t.uses.Load(), was.rank))
		}
		return
	}
	rank := t.nextRank(p.at, 1)
	t.credit.Add(n)
	old, had := t.table.put(entry{key: p.key, place: at, group: p.group, flags: seen, rank: uint32(rank)}, nil)
	a.head.add(n, rank)
	if had {
		t.drop(old, n)
		return
	}
	t.count.blocks.Add(1)
	t.count.bytes.Add(t.formats[p.group].Layout.ImageBytes())
}

// drop takes a block of n stored bytes that the index has no longer off its segment's account.
func (t *Tier) drop(e entry, n int64) {
	if g := t.segments.look(e.segment); g != nil {
		g.live.Add(-n)
		g.blocks.Add(-1)
		g.ranks.Add(-rank64(t.uses.Load(), e.rank))
	}
}

// add counts a block of n stored bytes in the segment.
func (s *segment) add(n, rank int64) {
	s.live.Add(n)
	s.blocks.Add(1)
	s.ranks.Add(rank)
}
