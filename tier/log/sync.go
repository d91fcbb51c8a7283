package log

import (
	"context"
	"errors"
	"fmt"

	"github.com/kvlane/kvlane/internal/dirfs"
	"github.com/kvlane/kvlane/tier/internal/blockdir"
)

// syncer is a goroutine that syncs SyncEvery after a write. Meanwhile it starts writeback, so that
// the disk is not idle.
func (t *Tier) syncer() {
	defer t.background.Done()
	for {
		select {
		case <-t.ctx.Done():
			return
		case <-t.unsynced:
		}
		for due := t.clock.After(t.cfg.SyncEvery); due != nil; {
			select {
			case <-t.ctx.Done():
				return
			case <-t.unstarted:
				t.startWriteback()
			case <-due:
				due = nil
			}
		}
		err := t.syncAll(t.ctx)
		if err != nil {
			err = fmt.Errorf("make blocks durable: %w", err)
		}
		t.setFailure(err)
	}
}

// syncSoon wakes the syncer after n bytes were written. It requests writeback after each groupBytes
// bytes.
func (t *Tier) syncSoon(n int64) {
	ask := func(c chan struct{}) {
		select {
		case c <- struct{}{}:
		default:
		}
	}
	ask(t.unsynced)
	if t.dirty.Add(n) >= t.cfg.groupBytes {
		t.dirty.Store(0)
		ask(t.unstarted)
	}
}

// startWriteback starts writing appended bytes to the disk, which shortens the next sync.
func (t *Tier) startWriteback() {
	for _, a := range t.appenders {
		t.order.Lock()
		number := a.number
		t.order.Unlock()
		g := t.segments.acquire(number)
		if g == nil {
			continue
		}
		from, end := max(g.started, g.synced.Load()), g.end.Load()
		g.started = end
		if w, ok := g.file.(dirfs.WritebackStarter); ok && from < end {
			_ = w.StartWriteback(from, end-from) // Sync will return the error
		}
		if err := g.release(); err != nil {
			t.count.errors.Add(1)
		}
	}
}

// syncAll makes all blocks of the index durable. It does nothing under FsyncNever.
func (t *Tier) syncAll(ctx context.Context) error {
	if t.cfg.Fsync == FsyncNever {
		return nil
	}
	select {
	case t.syncLock <- struct{}{}:
		defer func() { <-t.syncLock }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	var errs []error
	lowest := t.lowestHead() // segments before it are complete
	for _, listed := range t.segments.list() {
		g := t.segments.acquire(listed.number)
		if g == nil {
			continue
		}
		end := g.end.Load()
		if g.synced.Load() < end && g.broken.Load() == nil {
			if err := g.file.Sync(); err != nil {
				t.markBroken(g, err)
				errs = append(errs, blockdir.WriteError(err))
			} else {
				g.synced.Store(end)
			}
		}
		if end > 0 && g.number <= lowest {
			t.setSynced(position{uint64(g.number), end})
		}
		errs = append(errs, g.release())
	}
	return errors.Join(errs...)
}

func (t *Tier) syncedTo() position {
	if p := t.synced.Load(); p != nil {
		return *p
	}
	return position{}
}

// markBroken records a failed sync of a segment. The operating system may then treat lost pages as
// written, so the next Put of a block that is not durable yet writes it again.
func (t *Tier) markBroken(g *segment, err error) {
	g.broken.Store(&err)
	for p := (position{uint64(g.number), g.synced.Load()}); ; {
		was := t.broken.Load()
		if was != nil && !p.before(*was) || t.broken.CompareAndSwap(was, &p) {
			return
		}
	}
}

// setSynced records that everything before p is durable. It stops at the first broken segment.
func (t *Tier) setSynced(p position) {
	if b := t.broken.Load(); b != nil && b.before(p) {
		p = *b
	}
	for {
		was := t.synced.Load()
		if was != nil && !was.before(p) || t.synced.CompareAndSwap(was, &p) {
			return
		}
	}
}
