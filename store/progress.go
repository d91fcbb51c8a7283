package store

import (
	"fmt"
	"sync/atomic"

	"github.com/jonboulle/clockwork"

	"github.com/kvlane/kvlane/errdefs"
)

// Progress is told how far a load has come, by the load's own goroutines: its methods are safe for concurrent use and must not
// block. Behind it streams of the host program may wait.
type Progress interface {
	// Advance says that the first so many shards are on their pages, verified, but for blocks that have failed: when WaitShard
	// returns for them. A load that is not layerwise does not call it.
	Advance(shards int)
	// Wanted returns for how many shards, from the first, streams have come to wait: they have done what was enqueued before that. Zero:
	// none that is known, also once Set was called.
	Wanted() int
	// Set says that the load has ended, however, and with what errors of its blocks. Or, with ErrExpired, that it has not within
	// Config.WaitMax and that nobody should go on waiting for it on a device: the load goes on, its pages are its own until
	// LoadTask.Done, and all of its blocks fail with ErrExpired, since what has read them meanwhile has not read the blocks. It is called
	// once at least; the first call counts.
	Set(err error)
}

// progress is how a load tells a Progress, if it has one, and bounds how long that is waited for. A stream that waits may hold a
// queue of the hardware that the load itself needs: then nothing else would ever end the wait.
type progress struct {
	to    Progress
	t     *LoadTask
	bound clockwork.Timer
	ended atomic.Bool
}

func (p *progress) begin(to Progress, t *LoadTask) {
	if to != nil {
		p.to, p.t = to, t
		p.bound = t.s.clock.AfterFunc(t.s.cfg.WaitMax, p.expire)
	}
}

func (p *progress) advance(shards int) {
	if p.to != nil {
		p.to.Advance(shards)
	}
}

// wanted returns how many shards streams have come to wait for.
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

func (p *progress) expire() {
	if !p.ended.CompareAndSwap(false, true) {
		return
	}
	s := p.t.s
	err := fmt.Errorf("load has not ended in %v, and streams wait for it no longer: %w", s.cfg.WaitMax, errdefs.ErrExpired)
	p.t.distrust(err) // before they go on: who asks afterwards hears it
	p.to.Set(err)
	s.count.expired.Add(1)
	s.cfg.Hooks.loadExpired(err)
}
