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
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/tier"
	"github.com/kvlane/kvlane/tier/internal/blockdir"
)

// errBoundFull is returned if the bound has no space for another segment.
var errBoundFull = errors.New("the bound has no space for another segment")

// pending is a record that is about to be written.
type pending struct {
	record
	data []byte // the image, or its shards
	// src is the image of a direct Put in device memory, instead of data.
	src  mem.Extent
	from place // old place of a block that is being moved
	at   tier.Place
	err  error
	put  *putRequest // nil for moves and deletions
	// quiesced is set if a write of src failed and may still be reading it: see tier.DirectWriter.
	quiesced <-chan struct{}
}

// bytes returns the length of the block in its group.
func (p *pending) bytes() int64 { return max(int64(len(p.data)), p.src.Len) }

// putRequest is the state of one PutMany.
type putRequest struct {
	left int // number of records that are not written yet; guarded by queue.mu
	done chan struct{}
}

// appender writes groups, one at a time, to the end of a segment that only it uses. Most file
// systems serialize writes to a file, so several segments are appended to under load. A goroutine
// that takes an appender from its pool owns it until release.
type appender struct {
	t       *Tier
	pool    chan *appender
	number  uint32             // number of head, or of the segment that is being created, or 0; guarded by t.order
	head    *segment           // current segment; nil before the first write
	direct  dirfs.DirectWriter // the file of head for direct writes, or nil
	writer  writer
	parts   [][]byte
	headers []byte // buffer for the header of a group
}

func (a *appender) release() { a.pool <- a }

// lowestHead returns the lowest number of a segment to which groups may be appended.
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

// makePending sets p to the record of a verified image.
func (t *Tier) makePending(p *pending, key block.Key, image []byte) error {
	g := t.formats.Group(key)
	f := t.formats[g]
	h, err := f.Verified(image)
	if err != nil {
		return err
	}
	t.setRecord(p, key, h.SumAlgo)
	p.data = image
	if p.kind == compact {
		p.data = image[f.Layout.HeaderBytes():]
		p.sums = make([]uint64, h.Shards())
		for i := range p.sums {
			_, _, p.sums[i] = h.Shard(i)
		}
	}
	return nil
}

// setRecord sets the record of a block, except the checksums of a compact one.
func (t *Tier) setRecord(p *pending, key block.Key, algo block.SumAlgo) {
	g := t.formats.Group(key)
	p.record = record{key: key, kind: kindOf(t.formats[g]), group: uint8(g), algo: algo}
	p.at = t.places.Load().Place(key)
	p.position = uint32(min(p.at.Position, math.MaxUint32))
}

// commit queues recs and waits until they are written. The first waiting goroutine writes the
// records of all. If more than concurrentBytes are waiting, other goroutines write concurrently. If
// ctx ends, records that are still queued are removed from the queue. A running write is finished.
func (t *Tier) commit(ctx context.Context, w *putRequest, recs []*pending) {
	t.queue.mu.Lock()
	t.queue.recs = append(t.queue.recs, recs...)
	for _, p := range recs {
		t.queue.bytes += p.bytes()
	}
	t.queue.mu.Unlock()
	for {
		first, others := t.first, t.others
		t.queue.mu.Lock()
		if len(t.queue.recs) == 0 {
			first = nil // another goroutine is writing the rest of w
		}
		if t.queue.bytes < t.cfg.concurrentBytes() || len(t.first) > 0 {
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
			t.dequeue(w, queuedErr(ctx))
			ctx = context.WithoutCancel(ctx)
			continue
		}
		a.commitGroup()
		a.release()
	}
}

// queuedErr returns the error of records that were still queued when ctx ended.
func queuedErr(ctx context.Context) error {
	return fmt.Errorf("an earlier write has not ended: %w: %w", errdefs.ErrBusy, context.Cause(ctx))
}

// dequeue removes the records of w that no appender has taken.
func (t *Tier) dequeue(w *putRequest, cause error) {
	t.queue.mu.Lock()
	defer t.queue.mu.Unlock()
	waiting := len(t.queue.recs)
	t.queue.recs = slices.DeleteFunc(t.queue.recs, func(p *pending) bool {
		if p.put != w {
			return false
		}
		p.err = cause
		t.queue.bytes -= p.bytes()
		return true
	})
	if n := waiting - len(t.queue.recs); n > 0 {
		if w.left -= n; w.left == 0 {
			close(w.done)
		}
	}
}

// commitGroup writes one group of queued records.
func (a *appender) commitGroup() {
	t := a.t
	t.queue.mu.Lock()
	n := countFitting(t.formats, t.queue.recs, t.cfg.groupBytes)
	recs := t.queue.recs[:n:n]
	t.queue.recs = t.queue.recs[n:]
	if len(t.queue.recs) == 0 {
		t.queue.recs = nil
	}
	for _, p := range recs {
		t.queue.bytes -= p.bytes()
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

// countFitting returns the number of recs that fit into a group of this many bytes, but at least 1.
func countFitting(formats block.Formats, recs []*pending, bytes int64) int {
	head, data := int64(offTable+sumBytes), int64(0)
	var seen [block.MaxGroups]bool
	for i, p := range recs {
		head += recordBytes + 8*int64(len(p.sums))
		if p.kind != deleted && !seen[p.group] {
			seen[p.group] = true
			head += describedBytes(formats[p.group])
		}
		data += p.bytes()
		if i > 0 && (p.src.Len > 0 || recs[0].src.Len > 0) {
			return i // a block that is written directly forms a separate group
		}
		if i > 0 && (pages(head)*page+data > bytes || pages(head)*page > maxHeader) {
			return i
		}
	}
	return len(recs)
}

// headerOf returns the length of the header of a group of recs.
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

// appendAll writes recs as one group, or as several if a segment ends between them. mover is set
// for moves and deletions. It sets the error of each record.
func (a *appender) appendAll(recs []*pending, mover bool) {
	for len(recs) > 0 {
		n := len(recs)
		err := a.makeHead(recs, mover)
		if err == nil {
			n = countFitting(a.t.formats, recs, a.head.limit-a.head.end.Load())
			err = a.appendGroup(recs[:n])
		}
		for _, p := range recs[:n] {
			p.err = err
		}
		recs = recs[n:]
	}
}

// makeHead creates a new segment unless the head has space for the first of recs.
func (a *appender) makeHead(recs []*pending, mover bool) error {
	t := a.t
	need := headerOf(t.formats, recs[:1]) + recs[0].bytes()
	if a.head != nil && a.head.broken.Load() == nil && a.head.end.Load()+need <= a.head.limit {
		return nil
	}
	if err := a.seal(); err != nil {
		t.count.errors.Add(1)
	}
	now := t.clock.Now()
	bytes, reserved := t.space.reserve(now, mover)
	// Moves do not wake the collector: if all blocks are retained it would never pause.
	if !mover && t.space.excess() > 0 {
		t.collectSoon()
	}
	if !reserved {
		return errBoundFull
	}
	if err := a.newSegment(bytes, page+need); err != nil {
		t.space.add(-bytes)
		return blockdir.WriteError(err)
	}
	t.space.add(a.head.limit - bytes)
	return nil
}

// nextNumber assigns a new segment number to the appender.
func (a *appender) nextNumber() uint32 {
	a.t.order.Lock()
	defer a.t.order.Unlock()
	if a.number = 0; a.t.last < math.MaxUint32 {
		a.t.last++
		a.number = a.t.last
	}
	return a.number
}

// newSegment creates the file of a new segment and makes its name durable. If the disk has too
// little space, the segment is shorter, but not shorter than least.
func (a *appender) newSegment(bytes, least int64) error {
	t := a.t
	t.makeLock <- struct{}{}
	defer func() { <-t.makeLock }()
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
			continue // the file belongs to another program
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

// beginSegment writes an empty group, so that the segment is recognized if the next write fails. It
// makes the group and the file name durable.
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

// newHeader returns the header of a new group.
func (t *Tier) newHeader(at position, bytes int64) header {
	seq := position{t.epoch, t.groupCount.Add(1)}
	return header{bytes: bytes, at: at, synced: t.syncedTo(), seq: seq, directory: t.id}
}

// sealAll seals the segments of all appenders.
func (t *Tier) sealAll() error {
	t.sealLock <- struct{}{}
	defer func() { <-t.sealLock }()
	var errs []error
	for _, a := range t.appenders { // wait for each, and keep all until the end
		a = <-a.pool
		defer a.release()
		errs = append(errs, a.seal())
	}
	return errors.Join(errs...)
}

// seal ends the head: no more groups are appended to it.
func (a *appender) seal() error {
	t, g := a.t, a.head
	if g == nil {
		return nil
	}
	a.head = nil
	closed := a.closeDirect()
	defer func() {
		g.sealed.Store(true)
		t.order.Lock()
		a.number = 0
		t.order.Unlock()
	}()
	end := g.end.Load()
	if end <= page { // nothing was written
		t.space.add(-g.size.Swap(0))
		return errors.Join(closed, t.segments.remove(g), blockdir.Remove(t.dir, segmentName(g.number)))
	}
	err := truncate(g.file, end)
	t.space.add(end - g.size.Swap(end))
	return errors.Join(closed, err)
}

// appendGroup writes a group to the head, makes it durable as the policy requires, and adds it to
// the index. After an error, opening the log finds nothing of the group.
func (a *appender) appendGroup(recs []*pending) error {
	t, g, off := a.t, a.head, a.head.end.Load()
	h := t.newHeader(position{uint64(g.number), off}, headerOf(t.formats, recs))
	h.groupBytes = h.bytes
	h.records = make([]record, 0, len(recs))
	parts := append(a.parts[:0], a.headers[:h.bytes])
	for _, p := range recs {
		h.records = append(h.records, p.record)
		h.groupBytes += p.bytes()
		if len(p.data) > 0 {
			parts = append(parts, p.data)
		}
	}
	h.encode(parts[0], t.formats)
	err := a.writeDirect(recs[0], off+h.bytes)
	if err == nil {
		err = a.writer.writeAt(g.file, parts, off)
	}
	clear(parts)
	a.parts = parts[:0]
	if err == nil && t.cfg.Fsync == FsyncAlways {
		if err = g.file.Sync(); err != nil {
			t.markBroken(g, err)
		}
	}
	if err == nil {
		err = g.checkName()
	}
	if err != nil {
		return errors.Join(blockdir.WriteError(err), a.undo(off))
	}
	t.order.Lock()
	if h.hasDeletions() {
		g.deletes.Add(h.bytes)
	}
	at := off + h.bytes
	for _, p := range recs {
		a.addToIndex(p, place{g.number, uint32(at / page), uint16((at - off) / page)})
		at += p.bytes()
	}
	g.end.Store(at)
	t.order.Unlock()
	t.written.Add(at - off)
	t.wakeForCheckpoint()
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

// undo clears the header of a group that could not be written, and seals the segment.
func (a *appender) undo(off int64) error {
	t, g := a.t, a.head
	_, err := g.file.WriteAt(t.zeros[:], off) // in case the file cannot be truncated
	if t.cfg.Fsync != FsyncNever {
		if err = errors.Join(err, g.file.Sync()); err != nil {
			t.markBroken(g, err)
		}
	}
	return errors.Join(err, a.seal())
}

// addToIndex adds a written record to the index. The caller holds t.order, so that a checkpoint
// that covers the record includes its effect.
func (a *appender) addToIndex(p *pending, at place) {
	t := a.t
	if p.kind == deleted {
		if e, ok := t.table.remove(p.key, func(entry) bool { return true }); ok {
			t.uncount(e)
		}
		return
	}
	n := p.bytes()
	if p.from.segment != 0 {
		if was, ok := t.table.move(p.key, p.from, at, seen); ok {
			t.uncountPlace(was, n)
			a.head.count(n, rank64(t.uses.Load(), was.rank))
		}
		return
	}
	rank := t.nextRank(p.at, 1)
	t.credit.Add(n)
	old, had := t.table.put(entry{key: p.key, place: at, group: p.group, flags: seen, rank: uint32(rank)}, nil)
	a.head.count(n, rank)
	if had {
		t.uncountPlace(old, n)
		return
	}
	t.count.blocks.Add(1)
	t.count.bytes.Add(t.formats[p.group].Layout.ImageBytes())
}

// uncountPlace removes a block of n bytes from the counts of its segment.
func (t *Tier) uncountPlace(e entry, n int64) {
	if g := t.segments.get(e.segment); g != nil {
		g.live.Add(-n)
		g.blocks.Add(-1)
		g.ranks.Add(-rank64(t.uses.Load(), e.rank))
	}
}

// count adds a block of n bytes to the counts of the segment.
func (s *segment) count(n, rank int64) {
	s.live.Add(n)
	s.blocks.Add(1)
	s.ranks.Add(rank)
}
