package file

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/internal/dirfs"
	"github.com/kvlane/kvlane/tier"
	"github.com/kvlane/kvlane/tier/internal/blockdir"
)

// step is the difference between the file times of consecutive blocks of a prompt.
const step = time.Microsecond

const (
	timesMax = 1 << 16 // number of remembered file times; at least half of them are the latest
	planMost = 1 << 10 // blocks of a prompt that may be written out of order
	usesMax  = 32      // number of queued uses; further ones are dropped
)

// times holds the order of blocks, and the file times that this process has set or read recently.
type times struct {
	mu      sync.Mutex
	order   *tier.Order // nil if no order was set
	known   map[block.Key]timed
	older   map[block.Key]timed // the previous known
	uses    []use               // queue of the goroutine that renews times
	running bool                // that goroutine is running
}

// timed is the time of a block's file. there is false if the file is planned but not written yet.
type timed struct {
	when  time.Time
	there bool
}

// use is a use of consecutive blocks.
type use struct {
	keys []block.Key
	at   tier.Place
}

// SetOrder sets the order of future blocks. The tier sets the times of their files accordingly: the
// file of a block is a microsecond older than that of the block before it in the prompt.
func (t *Tier) SetOrder(o *tier.Order) {
	t.times.mu.Lock()
	defer t.times.mu.Unlock()
	t.times.order = o
}

// Use renews the times of the blocks' files in the background. It does nothing if the last block
// was renewed less than TouchAfter ago.
func (t *Tier) Use(keys []block.Key, at tier.Place) {
	if t.cfg.ReadOnly || len(keys) == 0 {
		return
	}
	now, w := t.clock.Now(), &t.times
	w.mu.Lock()
	defer w.mu.Unlock()
	last, ok := w.find(keys[len(keys)-1])
	if ok && !t.stale(last.when, now) || len(w.uses) == usesMax {
		return
	}
	if !w.running {
		if t.beginOp(context.Background()) != nil {
			return
		}
		w.running = true
		go t.renew()
	}
	w.uses = append(w.uses, use{slices.Clone(keys), at})
}

// renew renews the times of used blocks, until the queue is empty or the tier closes. It counts as
// an operation, so that Close waits for it.
func (t *Tier) renew() {
	defer t.ops.EndOp()
	for {
		w := &t.times
		w.mu.Lock()
		if len(w.uses) == 0 || t.ctx.Err() != nil {
			w.uses, w.running = nil, false
			w.mu.Unlock()
			return
		}
		u := w.uses[0]
		w.uses = w.uses[1:]
		w.mu.Unlock()
		t.renewUse(u)
	}
}

// renewUse sets the times of consecutive blocks so that each is older than the one before it.
func (t *Tier) renewUse(u use) {
	now := t.clock.Now()
	latest := now.Add(-step * time.Duration(u.at.Position))
	if before, ok := t.timeOf(u.at.Before, now); ok {
		latest = earlier(latest, before.Add(-step))
	}
	for _, key := range u.keys {
		if t.ctx.Err() != nil {
			return
		}
		if used, ok := t.renewOne(key, latest, now); ok {
			latest = used
		}
		latest = latest.Add(-step)
	}
}

// renewOne sets the time of a block's file to latest if its current time is stale or later than
// latest. It returns the file's time, or false if there is no file.
func (t *Tier) renewOne(key block.Key, latest, now time.Time) (time.Time, bool) {
	used, ok := t.timeOf(key, now)
	if ok && !t.stale(used, now) && !used.After(latest) {
		return used, true
	}
	d := dirOf(t.dirs, key)
	info, err := d.Stat(blockName(key))
	if err != nil {
		if !blockdir.Gone(err) {
			t.count.errors.Add(1)
		}
		return time.Time{}, false
	}
	if t.stale(info.Modified, now) || info.Modified.After(latest) {
		info = t.setTime(d, key, info, latest)
	}
	t.times.note(key, timed{info.Modified, true})
	return info.Modified, true
}

// stale reports whether a use must renew a time: it is at least TouchAfter old, or in the future.
func (t *Tier) stale(used, now time.Time) bool {
	return now.Sub(used) >= t.cfg.TouchAfter || used.After(now)
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// timeOf returns the time of a block's file, or false if there is none. The file may be planned. A
// stale time is read again, because another process may have renewed it.
func (t *Tier) timeOf(key block.Key, now time.Time) (time.Time, bool) {
	if key == (block.Key{}) {
		return time.Time{}, false
	}
	known, ok := t.times.lookup(key)
	if ok && !t.stale(known.when, now) {
		return known.when, true
	}
	info, err := dirOf(t.dirs, key).Stat(blockName(key))
	if err != nil {
		return time.Time{}, false
	}
	t.times.note(key, timed{info.Modified, true})
	return info.Modified, true
}

// plan returns the time for the file of a block that is about to be written: older than the time of
// the block before it. Because blocks are written in any order, plan also sets the planned times of
// missing blocks before it.
func (t *Tier) plan(o *tier.Order, key block.Key) time.Time {
	now, w := t.clock.Now(), &t.times
	if planned, ok := w.lookup(key); ok && !planned.there && !t.stale(planned.when, now) {
		return planned.when
	}
	chain, latest := []block.Key{key}, now
	at := o.Place(key)
	first := at.Position
	for at.Before != (block.Key{}) && len(chain) < planMost {
		if before, ok := t.timeOf(at.Before, now); ok {
			latest = earlier(latest, before.Add(-step))
			break
		}
		chain = append(chain, at.Before)
		at = o.Place(at.Before)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, k := range slices.Backward(chain) {
		latest = earlier(latest, now.Add(-step*time.Duration(first-i)))
		if known, ok := w.find(k); ok && !t.stale(known.when, now) && (i > 0 || !known.there) {
			latest = known.when // another goroutine has planned or written it meanwhile
		} else {
			w.set(k, timed{latest, false})
		}
		latest = latest.Add(-step)
	}
	return latest.Add(step)
}

// timeNew sets the time of a temporary file before it gets its block's name, if the tier has an
// order. It returns the file's new Info. If the time cannot be set, the block is stored without it.
func (t *Tier) timeNew(d *dir, temp string, key block.Key, info dirfs.Info) dirfs.Info {
	o := t.times.getOrder()
	if o == nil {
		return info
	}
	err := d.SetTime(temp, t.plan(o, key))
	if err == nil {
		var changed dirfs.Info
		if changed, err = d.Stat(temp); err == nil && changed.Inode == info.Inode {
			info = changed
		}
	}
	if err != nil {
		t.count.errors.Add(1)
	}
	t.times.note(key, timed{info.Modified, true})
	return info
}

// touch renews the time of a hit block. It does nothing if the tier has an order, because Use then
// renews times.
func (t *Tier) touch(d *dir, key block.Key, info dirfs.Info) {
	now := t.clock.Now()
	if t.times.getOrder() == nil && !t.cfg.ReadOnly && t.stale(info.Modified, now) {
		t.setTime(d, key, info, now)
	}
}

// setTime sets the time of a block's file and returns the file's new Info. On an error it counts
// the error and returns info unchanged: a hit does not fail because of it.
func (t *Tier) setTime(d *dir, key block.Key, info dirfs.Info, when time.Time) dirfs.Info {
	t.proofs.renew(key, info, when)
	err := d.SetTime(blockName(key), when)
	if err == nil {
		var changed dirfs.Info
		if changed, err = d.Stat(blockName(key)); err == nil && changed.Inode == info.Inode {
			if info.Modified = when; !changed.Modified.Equal(when) { // rounded by the file system
				t.proofs.renew(key, info, changed.Modified)
			}
			info = changed
		}
	}
	if err != nil && !blockdir.Gone(err) {
		t.count.errors.Add(1)
	}
	return info
}

// getOrder returns the tier's order, or nil.
func (w *times) getOrder() *tier.Order {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.order
}

// lookup returns the remembered time of a block.
func (w *times) lookup(key block.Key) (timed, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.find(key)
}

// find implements lookup. The caller holds mu.
func (w *times) find(key block.Key) (timed, bool) {
	when, ok := w.known[key]
	if !ok {
		when, ok = w.older[key]
	}
	return when, ok
}

// note remembers the time of a block's file.
func (w *times) note(key block.Key, when timed) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.set(key, when)
}

// set implements note. The caller holds mu.
func (w *times) set(key block.Key, when timed) {
	if w.known == nil || len(w.known) >= timesMax/2 {
		w.known, w.older = make(map[block.Key]timed), w.known
	}
	w.known[key] = when
}

// forget removes the remembered time of a removed block.
func (w *times) forget(key block.Key) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.known, key)
	delete(w.older, key)
}
