package stress

import (
	"context"
	"errors"
	"time"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/store"
)

// load loads blocks. It checks all bytes of blocks that are reported as loaded, and that pages that
// are reported as unchanged are.
func (c *client) load() {
	ns := c.draw()
	var under *store.Lease
	switch c.rng.IntN(4) {
	case 0:
		if under = c.leased(ns); under != nil {
			defer under.Release()
			if under.Len() < len(ns) {
				under = nil
			}
		}
	case 1:
		if n := len(c.leases); n > 0 {
			under, ns = c.leases[n-1].Lease, c.leases[n-1].ns
			if time.Now().After(under.Deadline()) {
				c.leases = c.leases[:n-1] // the lease is released, so this load is refused
			}
		}
	}
	refs := c.refs(ns)
	must := make([]bool, len(ns))
	for i, ref := range refs {
		if !c.viewer.checkPoisoned(ref.Page) || c.rng.IntN(2) == 0 && !c.viewer.poison(ref.Page) {
			return
		}
		must[i] = c.mustBe(ns[i])
	}
	versions := c.versionsOf(ns)
	o := store.LoadOptions{Layerwise: c.rng.IntN(2) == 0}
	ctx, cancel, most := c.within()
	defer cancel()
	var t *store.LoadTask
	var err error
	c.bounded(c.i, "Load", most, func() { t, err = c.engine.Store().Load(ctx, under, c.pages, refs, o) })
	if !c.begun("load", err) {
		return
	}
	if under != nil && c.rng.IntN(2) == 0 {
		under.Release()
	}
	handed := make([]int, len(ns))
	if o.Layerwise {
		c.waitShards(t, refs, ns, handed)
	}
	c.wait("load", t.Wait, t.Cancel, t.Done())
	for i, err := range t.Errs() {
		c.loaded(refs[i].Page, ns[i], handed[i], err)
		if err == nil && c.stayedRemoved(ns[i], versions[i]) {
			c.reportFailure("load finds block %d, which was removed", ns[i])
		}
		if under != nil && c.Alone && !c.FileFaults && !victim(ns[i]) && reason(err) == "not found" && !errors.Is(err, errdefs.ErrCorrupt) {
			c.reportFailure("load does not find block %d, which is leased: %v", ns[i], err)
		}
		if must[i] && reason(err) == "not found" {
			c.reportFailure("load does not find block %d, which is durable: %v", ns[i], err)
		}
	}
}

// waitShards checks each shard when WaitShard returns, while later shards are still in flight.
// handed[i] is set to the number of shards of block i that were returned.
func (c *client) waitShards(t *store.LoadTask, refs []store.Ref, ns, handed []int) {
	for shard := range c.layout.Shards() {
		ctx, cancel, most := c.within()
		var err error
		c.bounded(c.i, "WaitShard", most, func() { err = t.WaitShard(ctx, shard) })
		ended := ctx.Err() != nil
		cancel()
		if ended {
			return // err may be that of the context
		}
		failed := make(map[block.Key]bool)
		failures(err, failed)
		for i, ref := range refs {
			if failed[ref.Key] || handed[i] < shard {
				continue
			}
			handed[i] = shard + 1
			if ghost(ns[i]) {
				c.reportFailure("shard %d of block %d is handed out, and nobody has dumped it", shard, ns[i])
			}
			c.viewer.check(ref.Page, ns[i], shard, shard+1)
		}
	}
}

// failures adds the keys of all BlockErrors in err.
func failures(err error, into map[block.Key]bool) {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, e := range joined.Unwrap() {
			failures(e, into)
		}
		return
	}
	if be := (*store.BlockError)(nil); errors.As(err, &be) {
		into[be.Key] = true
	}
}

// loaded checks a page after the load of block n has ended with err.
func (c *client) loaded(page uint32, n, handed int, err error) {
	c.explain("loaded block", err)
	be := (*store.BlockError)(nil)
	switch {
	case err == nil && ghost(n):
		c.reportFailure("block %d is loaded, but was never dumped", n)
	case err == nil:
		c.tally.add("blocks loaded", 1)
		c.viewer.poisoned[page] = false
		c.viewer.check(page, n, 0, c.layout.Shards())
	case errors.As(err, &be) && !be.Undefined:
		c.viewer.checkPoisoned(page)
	default:
		c.viewer.poisoned[page] = false
		c.viewer.check(page, n, 0, handed)
	}
}

// viewer writes and reads the pages of a client on a separate queue. It recovers from faults of
// that queue.
type viewer struct {
	*life
	i        int
	queue    device.Queue
	memory   []byte // a part of life.memory
	stage    *mem.Region
	want     []byte
	poisoned map[uint32]bool
}

func newViewer(l *life, i int) viewer {
	n := l.blockBytes()
	return viewer{life: l, i: i, memory: l.memory[int64(i)*n:][:n:n], want: make([]byte, n), poisoned: make(map[uint32]bool)}
}

// move copies the stage to the page, or the page to the stage. It returns false if the device is
// closed.
func (v *viewer) move(page uint32, toDevice bool) bool {
	for {
		err := v.tryMove(page, toDevice)
		if err == nil {
			return true
		}
		if v.queue != nil {
			ctx, cancel := context.WithTimeout(context.Background(), grace)
			err = errors.Join(err, v.queue.Close(ctx))
			cancel()
			v.queue = nil
		}
		if errors.Is(err, errdefs.ErrClosed) || v.how == closeEngine && v.ctx.Err() != nil {
			return false
		}
		v.explain("page", err)
	}
}

func (v *viewer) tryMove(page uint32, toDevice bool) (err error) {
	dev := v.engine.Device()
	if v.stage == nil {
		if v.stage, err = dev.RegisterHost(v.memory); err != nil {
			return err
		}
	}
	if v.queue == nil {
		if v.queue, err = dev.OpenQueue(device.QueueOptions{}); err != nil {
			return err
		}
	}
	off := int64(0)
	for _, planes := range v.pages.Shards {
		for i := range planes {
			dst, src := planes[i].Page(page), mem.Extent{Region: v.stage, Off: off, Len: v.bytes}
			if !toDevice {
				dst, src = src, dst
			}
			if err := v.queue.Copy(dst, src); err != nil {
				return err
			}
			off += v.bytes
		}
	}
	ev, err := v.queue.Record()
	if err != nil {
		return err
	}
	defer ev.Close()
	ctx, cancel := context.WithTimeout(context.Background(), grace)
	defer cancel()
	return ev.Wait(ctx)
}

// fill writes the content of block n to the page.
func (v *viewer) fill(page uint32, n int) bool {
	v.put(v.memory, n)
	v.poisoned[page] = false
	return v.move(page, true)
}

// poison fills the page with a pattern that must not change.
func (v *viewer) poison(page uint32) bool {
	for i := range v.memory {
		v.memory[i] = 0xee
	}
	v.poisoned[page] = v.move(page, true)
	return v.poisoned[page]
}

// checkPoisoned checks that a poisoned page is unchanged. It returns false if the device is closed.
func (v *viewer) checkPoisoned(page uint32) bool {
	if !v.poisoned[page] {
		return true
	}
	if !v.move(page, false) {
		return false
	}
	for i, b := range v.memory {
		if b != 0xee {
			v.reportFailure("page %d is written to, byte %d is %#x, and nobody may", page, i, b)
			v.poisoned[page] = false
			break
		}
	}
	v.tally.add("pages found untouched", 1)
	return true
}

// check compares the shards first to end of the page with those of block n.
func (v *viewer) check(page uint32, n, first, end int) {
	if first == end || !v.move(page, false) {
		return
	}
	v.put(v.want, n)
	v.tally.add("bytes checked", int64(end-first)*int64(v.planes)*v.bytes)
	shard := v.planes * int(v.bytes)
	for i := first * shard; i < end*shard; i++ {
		if v.memory[i] != v.want[i] {
			v.reportFailure("page %d does not hold block %d: byte %d is %#x, not %#x", page, n, i, v.memory[i], v.want[i])
			return
		}
	}
}

// close releases the viewer's resources. It ignores errors, because the device may be closed.
func (v *viewer) close() {
	ctx, cancel := context.WithTimeout(context.Background(), grace)
	defer cancel()
	if v.queue != nil {
		_ = v.queue.Close(ctx)
	}
	if v.stage != nil {
		_ = v.engine.Device().Free(v.stage)
	}
}
