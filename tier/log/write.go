package log

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/dirfs"
	"github.com/kvlane/kvlane/tier/internal/blockdir"
)

// errNoRoom says that the bound has no room for another segment now.
var errNoRoom = errors.New("the bound has no room for another segment")

// pending is a record that is to be written.
type pending struct {
	record
	data []byte // whose bytes it has: an image, or its shards
	from place  // of a block that is moved
	err  error
	put  *putting // whose it is; nil of what is not put
}

// putting is what one caller puts.
type putting struct {
	left int // guarded by queue.mu
	done chan struct{}
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
	if p.kind == compact {
		p.data = image[f.Layout.HeaderBytes():]
		p.sums = make([]uint64, h.Shards())
		for i := range p.sums {
			_, _, p.sums[i] = h.Shard(i)
		}
	}
	return nil
}

// commit has what is put written together with what others put at the same time: whoever comes first writes for all who wait. A write
// that has begun is finished whatever becomes of its callers.
func (t *Tier) commit(w *putting, recs []*pending) {
	t.queue.mu.Lock()
	t.queue.recs = append(t.queue.recs, recs...)
	t.queue.mu.Unlock()
	for {
		select {
		case <-w.done:
			return
		case t.token <- struct{}{}:
			t.commitGroup()
			<-t.token
		}
	}
}

// commitGroup writes one group of what is queued. The caller holds the token.
func (t *Tier) commitGroup() {
	t.queue.mu.Lock()
	n := fitting(t.formats, t.queue.recs, groupBytes)
	recs := t.queue.recs[:n:n]
	t.queue.recs = t.queue.recs[n:]
	if len(t.queue.recs) == 0 {
		t.queue.recs = nil
	}
	t.queue.mu.Unlock()
	t.appendAll(recs, false)
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

// appendAll writes recs as one group, or as two where a segment ends between them. The caller holds the token; mover says that it
// moves blocks out of other segments, or deletes them. What failed is in each record.
func (t *Tier) appendAll(recs []*pending, mover bool) {
	for len(recs) > 0 {
		n := len(recs)
		err := t.makeHead(recs, mover)
		if err == nil {
			n = fitting(t.formats, recs, t.cfg.SegmentBytes-t.head.end.Load())
			err = t.appendGroup(recs[:n])
		}
		for _, p := range recs[:n] {
			p.err = err
		}
		recs = recs[n:]
	}
}

// makeHead makes sure that the head has room for the first of recs.
func (t *Tier) makeHead(recs []*pending, mover bool) error {
	need := headerOf(t.formats, recs[:1]) + int64(len(recs[0].data))
	if t.head != nil && !t.head.broken.Load() && t.head.end.Load()+need <= t.cfg.SegmentBytes {
		return nil
	}
	if err := t.seal(); err != nil {
		t.count.errors.Add(1)
	}
	now := t.clock.Now()
	if !t.room.take(now, mover) {
		t.collectSoon()
		return errNoRoom
	}
	g, err := t.newSegment()
	if err != nil {
		t.room.add(-t.room.unit)
		return blockdir.WriteError(err)
	}
	t.segments.add(g)
	t.head = g
	if t.room.excess() > 0 {
		t.collectSoon()
	}
	return nil
}

// newSegment makes the file of another segment, with room on the disk, and its name durable.
func (t *Tier) newSegment() (*segment, error) {
	for {
		t.last++
		if t.last == 0 {
			return nil, fmt.Errorf("make a segment: all numbers are used up: %w", errdefs.ErrNoSpace)
		}
		name := segmentName(t.last)
		f, err := t.dir.Open(name, os.O_RDWR|os.O_CREATE|os.O_EXCL)
		if errors.Is(err, unix.EEXIST) {
			continue // somebody else's
		}
		if err != nil {
			return nil, err
		}
		err = allocate(f, t.cfg.SegmentBytes)
		if err == nil {
			err = t.beginSegment(f)
		}
		if err != nil {
			return nil, errors.Join(err, f.Close(), blockdir.Remove(t.dir, name))
		}
		g := &segment{number: t.last, file: f}
		g.end.Store(page)
		g.synced.Store(page)
		g.size.Store(t.cfg.SegmentBytes)
		return g, nil
	}
}

// beginSegment writes a group of nothing, by which a segment is known whatever becomes of the next, and makes it and the name durable.
func (t *Tier) beginSegment(f dirfs.File) error {
	h := header{bytes: page, groupBytes: page, at: position{segment: uint64(t.last)}, synced: t.syncedTo(), directory: t.id}
	h.encode(t.headers[:page], t.formats)
	if err := t.writer.writeAt(f, [][]byte{t.headers[:page]}, 0); err != nil || t.cfg.Fsync == FsyncNever {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	return blockdir.SyncRoot(t.dir)
}

// seal ends the head: nothing is appended to it any more. The caller holds the token.
func (t *Tier) seal() error {
	g := t.head
	if g == nil {
		return nil
	}
	t.head = nil
	defer g.sealed.Store(true)
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
func (t *Tier) appendGroup(recs []*pending) error {
	g, off := t.head, t.head.end.Load()
	h := header{bytes: headerOf(t.formats, recs), at: position{uint64(g.number), off}, synced: t.syncedTo(), directory: t.id}
	h.groupBytes = h.bytes
	parts := append(t.parts[:0], t.headers[:h.bytes])
	for _, p := range recs {
		h.records = append(h.records, p.record)
		if len(p.data) > 0 {
			parts = append(parts, p.data)
			h.groupBytes += int64(len(p.data))
		}
	}
	h.encode(parts[0], t.formats)
	err := t.writer.writeAt(g.file, parts, off)
	clear(parts)
	t.parts = parts[:0]
	if err == nil && t.cfg.Fsync == FsyncAlways {
		if err = g.file.Sync(); err != nil {
			g.broken.Store(true)
		}
	}
	if err != nil {
		return errors.Join(blockdir.WriteError(err), t.undo(g, off))
	}
	at := off + h.bytes
	for _, p := range recs {
		t.enter(p, place{g.number, uint32(at / page), uint16((at - off) / page)})
		at += int64(len(p.data))
	}
	g.end.Store(at)
	t.written.Add(at - off)
	t.bytesUp()
	switch t.cfg.Fsync {
	case FsyncAlways:
		g.synced.Store(at)
		t.setSynced(position{uint64(g.number), at})
	case FsyncInterval:
		t.syncSoon()
	case FsyncNever:
	}
	return nil
}

// undo makes sure that a group that could not be written is not found later, as far as that can be done, and ends the segment.
func (t *Tier) undo(g *segment, off int64) error {
	_, err := g.file.WriteAt(t.zeros[:], off) // where it cannot be cut
	return errors.Join(err, t.seal())
}

// enter brings a record that was written into the index.
func (t *Tier) enter(p *pending, at place) {
	if p.kind == deleted {
		t.head.deletes.Store(true)
		return
	}
	n := int64(len(p.data))
	fold := foldOf(p.key)
	if p.from.segment != 0 {
		if was, ok := t.table.move(fold, p.from, at, seen); ok {
			t.drop(was, n)
			t.head.live.Add(n)
		}
		return
	}
	old, had := t.table.put(entry{fold: fold, place: at, group: p.group, flags: seen}, nil)
	t.head.live.Add(n)
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
		if e.flags&hot != 0 {
			g.hot.Add(-n)
		}
	}
}
