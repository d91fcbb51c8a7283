package log

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/tier"
	"github.com/kvlane/kvlane/tier/internal/blockdir"
	"github.com/kvlane/kvlane/tier/internal/usage"
)

// Open opens or creates the directory and reads its index. It verifies blocks that may not be
// durable. Errors name the directory and wrap ErrInvalid, ErrMismatch (another identity, layout or
// version), ErrCorrupt (malformed marker), ErrBusy if another process has it open, ErrReadOnly or
// ErrNoSpace. Segments that cannot be read, or contain groups of another version, stay unchanged
// and are counted. Their blocks are missing until the directory is opened again. ctx is used only
// during Open.
func Open(ctx context.Context, c Config) (*Tier, error) {
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("open log tier: %w", err)
	}
	c.setDefaults()
	t := newTier(c)
	if err := t.open(ctx); err != nil {
		t.cancel()
		return nil, fmt.Errorf("open log tier: directory %s: %w", filepath.Clean(c.Dir), errors.Join(blockdir.WriteError(err), t.closeFiles()))
	}
	if !c.ReadOnly {
		t.background.Add(1)
		go t.collector()
		if c.Fsync == FsyncInterval {
			t.background.Add(1)
			go t.syncer()
		}
	}
	return t, nil
}

// OpenTier is Open, as a tier of a store.
func (c *Config) OpenTier(ctx context.Context) (tier.Tier, error) {
	t, err := Open(ctx, *c)
	if err != nil {
		return nil, err
	}
	return t, nil
}

func newTier(c Config) *Tier {
	t := &Tier{
		cfg: c, clock: c.Clock, formats: c.Formats, table: table{events: c.Events}, locks: usage.NewKeyLocks(), segments: segments{all: make(map[uint32]*segment)},
		first: make(chan *appender, 1), others: make(chan *appender, maxAppenders),
		sealLock: make(chan struct{}, 1), makeLock: make(chan struct{}, 1),
		unsynced: make(chan struct{}, 1), unstarted: make(chan struct{}, 1), syncLock: make(chan struct{}, 1),
		roundLock: make(chan struct{}, 1), wake: make(chan struct{}, 1), covered: make(map[uint32]int64),
		space: space{
			whole: c.SegmentBytes, unit: c.SegmentBytes, least: c.leastSegment(), ahead: 1 + c.appenders(),
			most: c.MaxBytes, configured: c.MaxBytes, wake: make(chan struct{}), demand: make(chan struct{}),
		},
	}
	t.pins = blockdir.NewPins(t.locks)
	for n := range c.appenders() {
		a := &appender{t: t, pool: t.others}
		if n == 0 {
			a.pool = t.first
		}
		t.appenders = append(t.appenders, a)
		a.release()
	}
	t.failure.Store(new(error))
	t.ops.Init()
	t.ctx, t.cancel = context.WithCancel(context.Background())
	return t
}

func (t *Tier) open(ctx context.Context) error {
	if err := t.openDir(); err != nil {
		return err
	}
	if err := t.openMarker(); err != nil {
		return err
	}
	if !t.cfg.ReadOnly {
		t.removals = blockdir.NewRemovals(t.dir, t.cfg.MaxBytes)
	}
	if err := t.recover(ctx); err != nil {
		return err
	}
	return t.openPins()
}

// openDir opens or creates the directory, and locks it.
func (t *Tier) openDir() (err error) {
	c := &t.cfg
	root := filepath.Clean(c.Dir)
	t.dir, err = c.FS.OpenDir(root)
	if blockdir.Gone(err) && !c.ReadOnly {
		if err = blockdir.MakeDir(c.FS, root); err == nil {
			t.dir, err = c.FS.OpenDir(root)
		}
	}
	if errors.Is(err, unix.ENOTDIR) {
		err = fmt.Errorf("it is a file, or a part of its path is a file; give a directory: %w: %w", errdefs.ErrInvalid, err)
	}
	if err != nil {
		t.dir = nil
		return err
	}
	if c.ReadOnly {
		return nil
	}
	if c.Fsync != FsyncNever {
		if err := c.FS.SyncParents(root); err != nil {
			return err
		}
	}
	// Check the marker before writing: a wrong directory must not change.
	if m, err := blockdir.ReadMarker(t.dir, blockdir.Log); blockdir.Gone(err) {
		if err := blockdir.CheckEmpty(t.dir); err != nil {
			return err
		}
	} else {
		if err == nil {
			err = m.Check(c.Formats, c.Identities)
		}
		if err != nil {
			return markerError(err)
		}
	}
	t.lock, err = blockdir.LockDir(t.dir)
	return err
}

// openMarker reads the marker, or writes the marker of a new directory.
func (t *Tier) openMarker() error {
	m, err := blockdir.ReadMarker(t.dir, blockdir.Log)
	switch {
	case err == nil:
		if err = m.Check(t.cfg.Formats, t.cfg.Identities); err == nil && !t.cfg.ReadOnly {
			// The process that wrote the marker may have ended before the marker was durable.
			err = blockdir.SyncRoot(t.dir)
		}
	case blockdir.Gone(err) && t.cfg.ReadOnly:
		return fmt.Errorf("it has no %s, and is opened for reading only: %w: %w", blockdir.MarkerName, errdefs.ErrNotFound, err)
	case blockdir.Gone(err):
		m = blockdir.NewMarker(blockdir.Log, t.cfg.Formats, t.cfg.Identities)
		err = blockdir.WriteMarker(t.dir, m)
	}
	if err != nil {
		return markerError(err)
	}
	t.id, err = directoryID(m)
	return err
}

func markerError(err error) error {
	switch {
	case errors.Is(err, errdefs.ErrCorrupt):
		return fmt.Errorf("the identity of its blocks cannot be read; give another directory, remove this one, or try \"kvlane store verify --repair\": %w", err)
	case errors.Is(err, blockdir.ErrOtherKind):
		return fmt.Errorf("give another directory, or open this one as a file tier: %w", err)
	case errors.Is(err, errdefs.ErrMismatch):
		return fmt.Errorf("give another directory: %w", err)
	}
	return err
}

// group is a group that recovery has read.
type group struct {
	g *segment
	h *header
}

// recover restores the index from the checkpoint and the segments.
func (t *Tier) recover(ctx context.Context) error {
	if err := t.openSegments(); err != nil {
		return err
	}
	synced, anyTorn, err := t.loadCheckpoint(ctx)
	if err != nil {
		return err
	}
	var tail []group
	durable := position{} // highest durable position in any header
	for _, g := range t.segments.list() {
		err := t.readSegment(ctx, g, synced, func(h *header) {
			tail = append(tail, group{g, h})
			if durable.before(h.synced) {
				durable = h.synced
			}
		})
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if errors.Is(err, errdefs.ErrMismatch) {
			t.damage = append(t.damage, finding{segmentName(g.number), blockdir.Newer, err.Error()})
		}
		switch {
		case err != nil:
			g.unread = true
			t.keepUnread(g.number, err)
			t.setFailure(fmt.Errorf("read segment %s: %w", segmentName(g.number), err))
		case g.end.Load() > 0:
			t.last = max(t.last, g.number)
		}
	}
	t.countUnread()
	t.epoch = uint64(t.last) + 1
	slices.SortStableFunc(tail, func(a, b group) int { return a.h.seq.compare(b.h.seq) })
	for _, r := range tail {
		torn, err := t.replay(ctx, r, durable)
		if err != nil {
			return err
		}
		anyTorn = anyTorn || torn
	}
	if !t.cfg.ReadOnly {
		if err := t.finishRecovery(ctx, synced); err != nil {
			return err
		}
	}
	t.table.removeAll(func(e entry) bool {
		g := t.segments.get(e.segment)
		return g == nil || g.end.Load() == 0
	})
	t.account()
	switch {
	case t.cfg.ReadOnly:
	case len(t.damage) > 0:
		// Replace an outdated checkpoint that might become readable again.
		return t.checkpoint()
	case anyTorn:
		// The headers of later groups will state that all groups before them are durable, so that a
		// torn block would not be verified again.
		if err := t.checkpoint(); err != nil {
			t.setFailure(err)
			t.written.Store(math.MaxInt64 / 2) // keeps a checkpoint pending until one can be written
		}
	}
	return nil
}

// account counts the blocks of the index.
func (t *Tier) account() {
	var some []entry
	for i := range t.table.shards {
		some = t.table.copyShard(i, some[:0])
		for _, e := range some {
			f := t.formats[e.group]
			g := t.segments.get(e.segment)
			g.count(storedBytes(f), rank64(t.uses.Load(), e.rank))
			t.count.blocks.Add(1)
			t.count.bytes.Add(f.Layout.ImageBytes())
		}
	}
	for _, g := range t.segments.list() {
		if g.end.Load() > 0 && !g.unread { // files without groups of this log cannot be emptied
			g.holes.Store(holes(g.file, g.size.Load()))
			t.space.add(g.used())
		}
	}
}

// readSegment calls yield for the groups of a segment that the checkpoint does not cover, and sets
// the segment's end. The end is zero if no group of this log was found.
func (t *Tier) readSegment(ctx context.Context, g *segment, synced bool, yield func(*header)) error {
	from := t.covered[g.number]
	g.end.Store(from)
	if from > 0 {
		// Another file may have the segment's name by now.
		_, err := scan(ctx, g.file, g.number, 0, g.size.Load(), t.id, t.formats, func(*header) error { return errFound })
		if err == nil {
			delete(t.covered, g.number)
			from = 0
		} else if !errors.Is(err, errFound) {
			return err
		}
	}
	if synced {
		g.synced.Store(from)
	}
	end, err := scan(ctx, g.file, g.number, from, g.size.Load(), t.id, t.formats, func(h *header) error {
		yield(h)
		return nil
	})
	g.end.Store(max(from, end))
	return err
}

// errFound ends a scan at the first group.
var errFound = errors.New("a group was found")

// keepUnread records that a file with the name of a segment stays unchanged.
func (t *Tier) keepUnread(number uint32, why error) {
	t.unreadFiles = append(t.unreadFiles, number)
	t.notes = append(t.notes, fmt.Sprintf("log tier: %s/%s is kept, and does not count toward the bound: %v",
		filepath.Clean(t.cfg.Dir), segmentName(number), why))
}

// Notes returns messages for the user about files that were found when the tier was opened.
func (t *Tier) Notes() []string { return slices.Clone(t.notes) }

// maxNumberGap bounds how far the number of an unreadable file may exceed the numbers of the log's
// segments. A file with a higher number is ignored.
const maxNumberGap = 1 << 20

// countUnread raises the last number to those of segments that could not be read, so that new
// segments have higher numbers. It ignores a number far above all others, which does not belong to
// the log.
func (t *Tier) countUnread() {
	slices.Sort(t.unreadFiles)
	for _, n := range t.unreadFiles {
		if n > t.last && n-t.last <= maxNumberGap {
			t.last = n
		}
	}
}

// openSegments opens the files of the log.
func (t *Tier) openSegments() error {
	all, err := t.dir.ReadDir(".")
	if err != nil {
		return err
	}
	flag := os.O_RDWR
	if t.cfg.ReadOnly {
		flag = os.O_RDONLY
	}
	for _, name := range all {
		number, ok := parseSegment(name)
		if !ok {
			continue // Verify reports foreign files
		}
		f, err := t.dir.Open(name, flag)
		if err == nil {
			info, serr := f.Stat()
			if serr == nil {
				g := &segment{number: number, file: f}
				g.size.Store(info.Bytes)
				g.sealed.Store(true)
				t.segments.add(g)
				continue
			}
			err = errors.Join(serr, f.Close())
		}
		if !blockdir.Gone(err) {
			t.setFailure(fmt.Errorf("open segment: %w", err))
			t.keepUnread(number, err)
			t.damage = append(t.damage, finding{name, blockdir.Unjudged, err.Error()})
		}
	}
	return nil
}

// replay adds a group to the index. It verifies blocks that may not be durable, and reports whether
// one of them is torn.
func (t *Tier) replay(ctx context.Context, r group, durable position) (torn bool, err error) {
	if r.h.hasDeletions() {
		r.g.deletes.Add(r.h.bytes)
	}
	for i := range r.h.records {
		rec := &r.h.records[i]
		at := position{r.h.at.segment, r.h.at.off + rec.off}
		if rec.kind == deleted {
			t.table.remove(rec.key, func(e entry) bool { return !t.outlasts(e, at) })
			continue
		}
		if rec.foreign() || t.formats.Group(rec.key) != int(rec.group) {
			continue
		}
		f := t.formats[rec.group]
		e := entry{key: rec.key, group: rec.group, place: place{r.g.number, uint32(at.off / page), uint16(rec.off / page)}}
		end := position{at.segment, at.off + storedBytes(f)}
		if end.off > r.g.size.Load() {
			continue
		}
		if durable.before(end) {
			buf := t.borrow()
			err := t.read(ctx, r.g, e, rec.key, (*buf)[:f.Layout.ImageBytes()], true)
			t.buffers.Put(buf)
			if ctx.Err() != nil {
				return torn, context.Cause(ctx)
			}
			if errors.Is(err, errdefs.ErrCorrupt) || errors.Is(err, errdefs.ErrNotFound) {
				t.removals.Add(t.clock.Now(), rec.key, tier.CauseDamage)
				torn = true
				continue
			}
			if err == nil {
				e.flags = seen
			} else {
				t.setFailure(fmt.Errorf("read block %s: %w", rec.key, err)) // the block may be whole
			}
		}
		e.rank = uint32(t.replayRank(rec.position))
		t.table.put(e, func(old entry) bool { return t.outlasts(old, at) })
	}
	return torn, nil
}

// outlasts reports whether a block of the checkpoint is newer than the record at p, which the
// checkpoint does not cover. That can happen if the segment of p was unreadable when the checkpoint
// was written.
func (t *Tier) outlasts(e entry, p position) bool {
	_, knows := t.covered[uint32(p.segment)]
	return !knows && e.off() < t.covered[e.segment] && p.before(e.position())
}

// leftover reports whether the name is that of a file left by an ended process.
func leftover(name string) bool {
	return name == indexTemp || name == blockdir.PinsTemp || strings.HasPrefix(name, blockdir.MarkerTemp)
}

// finishRecovery truncates each segment after its last group and removes empty segments. If the
// policy requires it, it makes the remaining ones durable.
func (t *Tier) finishRecovery(ctx context.Context, synced bool) error {
	all, err := t.dir.ReadDir(".")
	if err != nil {
		return err
	}
	for _, name := range all {
		if leftover(name) && blockdir.Remove(t.dir, name) == nil {
			t.count.swept.Add(1)
		}
	}
	dirty := false
	for _, g := range t.segments.list() {
		size, end := g.size.Load(), g.end.Load()
		switch {
		case g.unread:
		case end <= page:
			if end == 0 && !isUnfinished(ctx, g.file, size) {
				g.unread = true
				t.keepUnread(g.number, errors.New("no group of this log is in it"))
				t.count.errors.Add(1)
				continue
			}
			if err := errors.Join(t.segments.remove(g), blockdir.Remove(t.dir, segmentName(g.number))); err != nil {
				t.setFailure(err)
			}
			continue
		case end < size:
			if err := truncate(g.file, end); err != nil {
				t.setFailure(err)
			} else if info, err := g.file.Stat(); err == nil {
				g.size.Store(info.Bytes)
			}
		}
		if t.cfg.Fsync != FsyncNever && (!synced || g.synced.Load() < end) {
			if err := g.file.Sync(); err != nil {
				return err
			}
			g.synced.Store(end)
			dirty = true
		}
	}
	if dirty {
		return blockdir.SyncRoot(t.dir)
	}
	return nil
}
