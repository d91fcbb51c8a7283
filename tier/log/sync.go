package log

import (
	"context"
	"errors"
	"fmt"

	"github.com/kvlane/kvlane/internal/dirfs"
	"github.com/kvlane/kvlane/tier/internal/blockdir"
)

// syncer makes durable what was written, SyncEvery after it was, one sync at a time. Until then it keeps the disk busy with it.
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
		t.noted(err)
	}
}

// syncSoon asks for a sync, and for writeback before it once a group's worth of bytes has come since the last time; n are new.
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

// startWriteback has the disk begin with what was appended, so that the next sync finds little left to do.
func (t *Tier) startWriteback() {
	for _, a := range t.appenders {
		t.order.Lock()
		number := a.number
		t.order.Unlock()
		g := t.segments.use(number)
		if g == nil {
			continue
		}
		from, end := max(g.started, g.synced.Load()), g.end.Load()
		g.started = end
		if w, ok := g.file.(dirfs.WritebackStarter); ok && from < end {
			_ = w.StartWriteback(from, end-from) // what fails, the sync tells
		}
		if err := g.release(); err != nil {
			t.count.errors.Add(1)
		}
	}
}

// syncAll makes durable what is in the index, unless the policy promises nothing.
func (t *Tier) syncAll(ctx context.Context) error {
	if t.cfg.Fsync == FsyncNever {
		return nil
	}
	select {
	case t.syncing <- struct{}{}:
		defer func() { <-t.syncing }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	var errs []error
	lowest := t.lowestHead() // those before it are complete
	for _, listed := range t.segments.list() {
		g := t.segments.use(listed.number)
		if g == nil {
			continue
		}
		end := g.end.Load()
		if g.synced.Load() < end && !g.broken.Load() {
			if err := g.file.Sync(); err != nil {
				t.breaks(g)
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

// breaks notes that a segment could not be synced. The system may take for written what is not: what is not durable by now is written anew
// when it is put again.
func (t *Tier) breaks(g *segment) {
	g.broken.Store(true)
	for p := (position{uint64(g.number), g.synced.Load()}); ; {
		was := t.broken.Load()
		if was != nil && !p.before(*was) || t.broken.CompareAndSwap(was, &p) {
			return
		}
	}
}

// setSynced notes that everything before p is durable, as far as nothing before it is broken.
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
