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
	// LoadTask.Done, and its results tell what became of it. It is called once at least; the first call counts.
	Set(err error)
}

// progress is how a load tells a Progress, if it has one, and bounds how long that is waited for. A stream that waits may hold a
// queue of the hardware that the load itself needs: then nothing else would ever end the wait.
type progress struct {
	to    Progress
	s     *Store
	bound clockwork.Timer
	ended atomic.Bool
}

func (p *progress) begin(to Progress, s *Store) {
	if to != nil {
		p.to, p.s = to, s
		p.bound = s.clock.AfterFunc(s.cfg.WaitMax, p.expire)
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
	err := fmt.Errorf("load has not ended in %v, and streams wait for it no longer: %w", p.s.cfg.WaitMax, errdefs.ErrExpired)
	p.to.Set(err)
	p.s.count.expired.Add(1)
	p.s.cfg.Hooks.loadExpired(err)
}
