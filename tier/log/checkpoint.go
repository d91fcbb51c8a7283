package log

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/zeebo/xxh3"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/dirfs"
	"github.com/kvlane/kvlane/tier/internal/blockdir"
)

// A checkpoint contains the index, and for each segment the length that it covers. Opening reads
// the rest of the segments. See docs/log-format.md.
const (
	indexName  = "index"
	indexTemp  = "index.tmp"
	indexMagic = "\x89KVLI\r\n\x1a"

	offIndexDir      = 16
	offIndexFlags    = 32
	offIndexSegments = 40
	offIndexEntries  = 48
	offIndexUses     = 56
	indexSynced      = 1 // flag: the covered blocks are durable

	indexVersion = 2
	itemBytes    = 48
	chunkItems   = 2730 // a chunk with its checksum has 128 KiB
)

// coverage is the length of a segment that a checkpoint covers. synced is the length of its durable
// part, or zero if all is durable.
type coverage struct {
	number      uint32
	end, synced int64
}

// errOldCheckpoint is returned for a checkpoint of version 1, which is ignored: it contains only
// half of each key.
var errOldCheckpoint = errors.New("a checkpoint of version 1")

// chunkWriter writes items of 48 bytes. A checksum follows each chunkItems items.
type chunkWriter struct {
	f   dirfs.File
	off int64
	buf []byte
}

func (w *chunkWriter) item(fill func(b []byte)) error {
	w.buf = append(w.buf, make([]byte, itemBytes)...)
	fill(w.buf[len(w.buf)-itemBytes:])
	if len(w.buf) < chunkItems*itemBytes {
		return nil
	}
	return w.flush()
}

func (w *chunkWriter) flush() error {
	if len(w.buf) == 0 {
		return nil
	}
	b := binary.LittleEndian.AppendUint64(w.buf, xxh3.Hash(w.buf))
	n, err := w.f.WriteAt(b, w.off)
	if err == nil && n != len(b) {
		err = io.ErrShortWrite
	}
	w.off += int64(len(b))
	w.buf = w.buf[:0]
	return err
}

// checkpoint writes the index to disk. It may or may not include blocks that are written meanwhile.
// No blocks are moved during the write, because a block may be durable only in its old place.
func (t *Tier) checkpoint() error {
	t.roundLock <- struct{}{}
	defer func() { <-t.roundLock }()
	return t.checkpointInRound()
}

func (t *Tier) checkpointInRound() error {
	written := t.written.Load()
	// Read the ends of the segments before the index, so that the index includes all blocks before
	// the ends. Read all ends under one lock. Otherwise the checkpoint could cover a deletion but
	// not the deleted block, which would be restored.
	var cover []coverage
	covered := make(map[uint32]int64)
	t.order.Lock()
	all := t.segments.list()
	for _, g := range all {
		if end := g.end.Load(); end > 0 && !g.unread {
			cover = append(cover, coverage{number: g.number, end: end})
			covered[g.number] = end
		}
	}
	t.order.Unlock()
	if err := t.syncAll(context.WithoutCancel(t.ctx)); err != nil {
		return fmt.Errorf("sync the segments of a checkpoint: %w", err)
	}
	synced := t.cfg.Fsync != FsyncNever
	for i := range cover {
		c := &cover[i]
		if g := t.segments.get(c.number); t.cfg.Fsync != FsyncNever && g != nil && g.synced.Load() < c.end {
			c.synced, synced = max(page, g.synced.Load()), false // the last sync of the segment failed
		}
	}
	if err := t.writeCheckpoint(cover, covered, synced); err != nil {
		return fmt.Errorf("write checkpoint: %w", blockdir.WriteError(err))
	}
	t.covered = covered
	t.written.Add(-written)
	return nil
}

func (t *Tier) writeCheckpoint(cover []coverage, covered map[uint32]int64, synced bool) (err error) {
	if err := errors.Join(t.setForeignAside(indexName), t.setForeignAside(indexTemp)); err != nil {
		return err
	}
	if err := blockdir.Remove(t.dir, indexTemp); err != nil {
		return err
	}
	f, err := t.dir.Open(indexTemp, os.O_RDWR|os.O_CREATE|os.O_EXCL)
	if err != nil {
		return err
	}
	entries, err := t.writeItems(f, cover, covered)
	if err == nil {
		b := make([]byte, page)
		le := binary.LittleEndian
		copy(b, indexMagic)
		le.PutUint32(b[offVersion:], indexVersion)
		le.PutUint32(b[offHeader:], page)
		copy(b[offIndexDir:], t.id[:])
		if synced {
			le.PutUint64(b[offIndexFlags:], indexSynced)
		}
		le.PutUint64(b[offIndexSegments:], uint64(len(cover)))
		le.PutUint64(b[offIndexEntries:], uint64(entries))
		le.PutUint64(b[offIndexUses:], uint64(t.uses.Load()))
		le.PutUint64(b[page-sumBytes:], xxh3.Hash(b[:page-sumBytes]))
		var n int
		if n, err = f.WriteAt(b, 0); err == nil && n != len(b) {
			err = io.ErrShortWrite
		}
	}
	if err == nil && t.cfg.Fsync != FsyncNever {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = t.dir.Rename(indexTemp, indexName, true)
	}
	if err != nil {
		return errors.Join(err, blockdir.Remove(t.dir, indexTemp))
	}
	if t.cfg.Fsync != FsyncNever {
		return blockdir.SyncRoot(t.dir)
	}
	return nil
}

func (t *Tier) writeItems(f dirfs.File, cover []coverage, covered map[uint32]int64) (entries int64, err error) {
	le := binary.LittleEndian
	w := chunkWriter{f: f, off: page}
	for _, c := range cover {
		if err := w.item(func(b []byte) {
			le.PutUint64(b, uint64(c.number))
			le.PutUint64(b[8:], uint64(c.end))
			le.PutUint64(b[16:], uint64(c.synced))
		}); err != nil {
			return 0, err
		}
	}
	var some []entry
	for i := range t.table.shards {
		some = t.table.copyShard(i, some[:0])
		for _, e := range some {
			if e.off() >= covered[e.segment] {
				continue // recovery reads the block from the segment
			}
			entries++
			if err := w.item(e.encode); err != nil {
				return 0, err
			}
		}
	}
	return entries, w.flush()
}

func (e *entry) encode(b []byte) {
	le := binary.LittleEndian
	copy(b, e.key[:])
	le.PutUint32(b[32:], e.segment)
	le.PutUint32(b[36:], e.page)
	le.PutUint16(b[40:], e.back)
	b[42], b[43] = e.group, 0
	le.PutUint32(b[44:], e.rank)
}

func decodeEntry(b []byte) entry {
	le := binary.LittleEndian
	return entry{
		key:   block.Key(b),
		place: place{le.Uint32(b[32:]), le.Uint32(b[36:]), le.Uint16(b[40:])}, group: b[42], rank: le.Uint32(b[44:]),
	}
}

// readCheckpoint reads a checkpoint. It calls cover with the coverage, and then add for every
// entry. It verifies each chunk before use. It returns ErrCorrupt for damage and ErrMismatch for
// another version.
func readCheckpoint(f io.ReaderAt, id [16]byte, cover func(of []coverage, blocks, uses int64), add func(entry)) (synced bool, err error) {
	r := io.NewSectionReader(f, 0, 1<<50)
	head := make([]byte, page)
	if _, err := io.ReadFull(r, head); err != nil {
		return false, shortRead(err)
	}
	bad := func(format string, args ...any) error {
		return fmt.Errorf("checkpoint: "+format+": %w", append(args, errdefs.ErrCorrupt)...)
	}
	le := binary.LittleEndian
	if string(head[:len(indexMagic)]) != indexMagic || le.Uint64(head[page-sumBytes:]) != xxh3.Hash(head[:page-sumBytes]) {
		return false, bad("its header is damaged")
	}
	switch v := le.Uint32(head[offVersion:]); {
	case v < indexVersion:
		return false, errOldCheckpoint
	case v > indexVersion:
		return false, fmt.Errorf("checkpoint: format version %d, this build reads %d: %w", v, indexVersion, errdefs.ErrMismatch)
	}
	if [16]byte(head[offIndexDir:]) != id {
		return false, bad("it is of another directory")
	}
	segments, entries := le.Uint64(head[offIndexSegments:]), le.Uint64(head[offIndexEntries:])
	const most = 1 << 40
	if segments > most || entries > most {
		return false, bad("%d segments and %d blocks", segments, entries)
	}
	var covers []coverage
	buf := make([]byte, chunkItems*itemBytes+sumBytes)
	for left := segments + entries; left > 0; {
		n := min(left, chunkItems)
		b := buf[:n*itemBytes+sumBytes]
		if _, err := io.ReadFull(r, b); err != nil {
			return false, shortRead(err)
		}
		if le.Uint64(b[n*itemBytes:]) != xxh3.Hash(b[:n*itemBytes]) {
			return false, bad("a checksum is wrong")
		}
		left -= n
		for b = b[:n*itemBytes]; len(b) > 0; b = b[itemBytes:] {
			if segments > 0 {
				covers = append(covers, coverage{uint32(le.Uint64(b)), int64(le.Uint64(b[8:])), int64(le.Uint64(b[16:]))})
				if segments--; segments == 0 {
					cover(covers, int64(entries), int64(le.Uint64(head[offIndexUses:])))
				}
				continue
			}
			add(decodeEntry(b))
		}
	}
	return le.Uint64(head[offIndexFlags:])&indexSynced != 0, nil
}

// loadCheckpoint adds the blocks of the last checkpoint, if any, to the index. It reports whether
// they were durable. It ignores a checkpoint that is damaged or unreadable or refers to a torn
// block, because the segments have all blocks.
func (t *Tier) loadCheckpoint(ctx context.Context) (synced, torn bool, err error) {
	if !t.cfg.ReadOnly {
		if err := t.setForeignAside(indexName); err != nil {
			return false, false, err
		}
	}
	unsure := make(map[uint32]int64) // by segment: offset from which bytes may not be durable
	f, err := t.dir.Open(indexName, os.O_RDONLY)
	// Verify reports an irregular file as foreign.
	if blockdir.Gone(err) || errors.Is(err, dirfs.ErrIrregular) {
		return false, false, nil
	}
	if err == nil {
		synced, err = t.indexCheckpoint(f, unsure)
		err = errors.Join(err, f.Close())
	}
	switch {
	case err == nil:
		if torn = t.anyTorn(ctx, unsure); ctx.Err() != nil {
			return false, false, context.Cause(ctx)
		}
		if !torn {
			return synced, false, nil
		}
	case errors.Is(err, errdefs.ErrMismatch):
		return false, false, err
	case errors.Is(err, errOldCheckpoint):
	default:
		t.setFailure(fmt.Errorf("read checkpoint: %w", err))
		problem := blockdir.Unjudged
		if errors.Is(err, errdefs.ErrCorrupt) {
			problem = blockdir.Damaged
		}
		t.damage = append(t.damage, finding{indexName, problem, err.Error()})
	}
	t.table.removeAll(func(entry) bool { return true })
	t.covered = make(map[uint32]int64)
	return false, torn, nil
}

// indexCheckpoint adds the blocks of a checkpoint to the index, and sets t.covered.
func (t *Tier) indexCheckpoint(f dirfs.File, unsure map[uint32]int64) (synced bool, err error) {
	info, err := f.Stat()
	if err != nil {
		return false, err
	}
	sizes := make(map[uint32]int64)
	for _, g := range t.segments.list() {
		sizes[g.number] = g.size.Load()
	}
	return readCheckpoint(f, t.id, func(cover []coverage, blocks, uses int64) {
		t.uses.Store(uses)
		t.table.reserve(min(blocks, info.Bytes/itemBytes)) // the count may be wrong
		for _, c := range cover {
			// A new segment with that number would count as covered.
			t.last = max(t.last, c.number)
			if size, ok := sizes[c.number]; ok && c.end >= 0 && c.end%page == 0 {
				t.covered[c.number] = min(c.end, size)
			}
			if c.synced > 0 {
				unsure[c.number] = c.synced
			}
		}
	}, func(e entry) {
		if int(e.group) >= len(t.formats) || int(e.group) != t.formats.Group(e.key) || e.segment == 0 {
			return
		}
		// A segment that became shorter has lost blocks at its end.
		if e.off()+storedBytes(t.formats[e.group]) <= sizes[e.segment] && e.header() >= 0 {
			t.table.put(e, nil)
		}
	})
}

// setForeignAside moves a folder, link or device with the name of a checkpoint to quarantine,
// because it would prevent writing a checkpoint.
func (t *Tier) setForeignAside(name string) error {
	info, err := t.dir.Stat(name)
	if blockdir.Gone(err) || err == nil && info.Regular() {
		return nil
	}
	aside := fmt.Sprintf("%s/%016x-%s", blockdir.Quarantine, uint64(t.clock.Now().UnixNano()), name)
	if err == nil {
		err = blockdir.Mkdir(t.dir, blockdir.Quarantine)
	}
	if err == nil {
		err = t.dir.Rename(name, aside, false)
	}
	if err != nil {
		return fmt.Errorf("a %s is where %s belongs, and could not be moved to quarantine; move it away: %w", info.Kind(), name, err)
	}
	return nil
}

// anyTorn reports whether a block that may not have been durable at the checkpoint is torn. The
// copy from which it was moved may be intact.
func (t *Tier) anyTorn(ctx context.Context, unsure map[uint32]int64) bool {
	buf := t.borrow()
	defer t.buffers.Put(buf)
	var some []entry
	for i := range t.table.shards {
		if len(unsure) == 0 || ctx.Err() != nil {
			return false
		}
		some = t.table.copyShard(i, some[:0])
		for _, e := range some {
			from, ok := unsure[e.segment]
			if !ok || e.off()+storedBytes(t.formats[e.group]) <= from {
				continue
			}
			g := t.segments.get(e.segment)
			err := t.read(ctx, g, e, e.key, (*buf)[:t.formats[e.group].Layout.ImageBytes()], true)
			if errors.Is(err, errdefs.ErrCorrupt) || errors.Is(err, errdefs.ErrNotFound) {
				return true
			}
			if err != nil {
				// the block may be whole
				t.setFailure(fmt.Errorf("read a block of segment %s: %w", segmentName(e.segment), err))
			}
		}
	}
	return false
}

// shortRead wraps ErrCorrupt in the error of a file that ends too early.
func shortRead(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("it ends too early: %w: %w", errdefs.ErrCorrupt, err)
	}
	return err
}

// checkpointAfter is the minimum number of bytes written between two checkpoints. With a large
// index it is more, so that checkpoints are a small part of the writes.
const checkpointAfter = 256 << 20

// wakeForCheckpoint wakes the collector if a checkpoint is due.
func (t *Tier) wakeForCheckpoint() {
	if t.checkpointDue() {
		t.collectSoon()
	}
}

func (t *Tier) checkpointDue() bool {
	return t.written.Load() >= max(t.cfg.checkpointBytes, 16*itemBytes*t.count.blocks.Load())
}
