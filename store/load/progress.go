package load

import (
	"fmt"
	"sync/atomic"

	"github.com/jonboulle/clockwork"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/store/pipeline"
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

// progress forwards the progress of a load to a Progress, if there is one, and bounds the time
// until Set. A waiting stream may hold a device queue that the load itself needs. Then only the
// bound ends the wait.
type progress struct {
	to    Progress
	base  *task.Task
	p     *pipeline.Pipeline
	bound clockwork.Timer
	ended atomic.Bool
}

func (p *progress) begin(to Progress, t *task.Task, pl *pipeline.Pipeline) {
	if to != nil {
		p.to, p.base, p.p = to, t, pl
		p.bound = pl.Clock.AfterFunc(pl.WaitMax, p.expire)
	}
}

func (p *progress) advance(layers int) {
	if p.to != nil {
		p.to.Advance(layers)
	}
}

// wanted returns the number of layers that streams wait for.
func (p *progress) wanted() int {
	if p.to == nil {
		return 0
	}
	return p.to.Wanted()
}

func (p *progress) end(err error) {
	if p.to != nil && p.ended.CompareAndSwap(false, true) {
		p.bound.Stop()
		p.to.Set(err)
	}
}

// expire releases the streams that wait for the load.
func (p *progress) expire() {
	if !p.ended.CompareAndSwap(false, true) {
		return
	}
	err := fmt.Errorf("load did not end in %v, streams no longer wait for it: %w", p.p.WaitMax, errdefs.ErrExpired)
	p.base.Expire(err) // before streams continue: later calls of Wait must return it
	p.to.Set(err)
	p.p.CountExpired(err)
}
