// Package layers counts the layers of a load that are complete, and reports them to the load's
// waiters and to streams of the host program.
package layers

import (
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/jonboulle/clockwork"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/store/pipeline"
	"github.com/kvlane/kvlane/store/pool"
	"github.com/kvlane/kvlane/store/task"
)

// Progress receives the progress of a load, for streams of the host program that wait for it. Its
// methods are called by goroutines of the load. They must be safe for concurrent use and must not
// block.
type Progress interface {
	// Advance reports that shards 0 to shards-1 of all blocks that have not failed are on their
	// pages and verified. WaitShard returns for these shards. It is called for layerwise loads
	// only.
	Advance(shards int)
	// Wanted returns the number of shards, from the first, that streams are waiting for now: they
	// have completed all earlier work. It returns zero if that is unknown, and after Set.
	Wanted() int
	// Set reports the end of the load and the joined errors of its blocks. With ErrExpired it
	// reports instead that the load has not ended within Config.WaitMax and that streams must be
	// released. The load then continues and owns its pages until Done, and all of its blocks fail
	// with ErrExpired, because streams may have read other bytes. Set is called at least once. Only
	// the first call has an effect.
	Set(err error)
}

// Counter counts the layers of a load and forwards its progress to a Progress, if there is one. It
// bounds the time until Set: a waiting stream may hold a device queue that the load itself needs,
// and then only the bound ends the wait. Exceeded may be called at any time, the other methods by
// the load's goroutine.
type Counter struct {
	p     *pipeline.Pipeline
	task  *task.Task
	to    Progress // or nil
	left  []int    // layerwise: by layer, number of blocks that wait for it
	done  pool.Watermark
	bound clockwork.Timer
	ended atomic.Bool
}

// Begin begins a load, which reports to a Progress, or to none.
func (c *Counter) Begin(p *pipeline.Pipeline, t *task.Task, to Progress) {
	if c.p, c.task, c.to = p, t, to; to != nil {
		c.bound = p.Clock.AfterFunc(p.WaitMax, c.expire)
	}
}

// Count makes all blocks wait for the layers of their page groups. It uses the memory of left until
// End, and returns it.
func (c *Counter) Count(groups []uint8, left []int) []int {
	m := c.p.Map
	c.left = slices.Grow(left[:0], m.NumLayers())[:m.NumLayers()]
	var blocks [block.MaxGroups]int
	for _, g := range groups {
		blocks[g]++
	}
	for k := range c.left {
		c.left[k] = blocks[m.Shard(k).Group]
	}
	c.report()
	return c.left
}

// Complete counts n blocks that no longer wait for a layer.
func (c *Counter) Complete(layer, n int) {
	if c.left[layer] -= n; c.left[layer] == 0 {
		c.report()
	}
}

// report reports the layers that no block waits for.
func (c *Counter) report() {
	n := c.done.Value()
	for n < len(c.left) && c.left[n] == 0 {
		n++
	}
	if c.done.Advance(n) && c.to != nil {
		c.to.Advance(n)
	}
}

// Exceeded returns a channel that is closed when no block waits for a layer or those before it.
func (c *Counter) Exceeded(layer int) <-chan struct{} { return c.done.Exceeded(layer) }

// Awaited reports whether streams may wait for layers.
func (c *Counter) Awaited() bool { return c.to != nil }

// Wanted returns the number of layers that streams wait for.
func (c *Counter) Wanted() int { return c.to.Wanted() }

// CompleteAll makes all layers complete, as the load has ended.
func (c *Counter) CompleteAll() {
	c.done.Advance(c.p.Map.NumLayers())
	c.left = nil
}

// End reports the end of the load, after its task is done.
func (c *Counter) End(err error) {
	if c.to != nil && c.ended.CompareAndSwap(false, true) {
		c.bound.Stop()
		c.to.Set(err)
	}
}

// expire releases the streams that wait for the load.
func (c *Counter) expire() {
	if !c.ended.CompareAndSwap(false, true) {
		return
	}
	err := fmt.Errorf("load did not end in %v, streams no longer wait for it: %w", c.p.WaitMax, errdefs.ErrExpired)
	c.task.Expire(err) // before streams continue: later calls of Wait must return it
	c.to.Set(err)
	c.p.CountExpired(err)
}
