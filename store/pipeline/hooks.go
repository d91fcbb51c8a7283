package pipeline

import (
	"time"

	"github.com/kvlane/kvlane/block"
)

// Hooks are functions that are called on events of interest to operators. Each may be nil. They are
// called without locks and concurrently, and delay the block concerned. They may call the store,
// but must not wait for a task.
type Hooks struct {
	// Corrupt is called when a block failed its check in a tier and was dropped there.
	Corrupt func(tier string, key block.Key, err error)
	// BadCopy is called when a block failed its check on a page but not in its slot, so that the
	// copy or the page's memory is at fault. A block is copied at most three times.
	BadCopy func(key block.Key, err error)
	// LeftOut is called when a tier failed to store a dumped block (DumpTask.LeftOut).
	LeftOut func(tier string, key block.Key, err error)
	// BatchFailed is called when a stream failed a batch. Parts that had completed and were
	// verified still count.
	BatchFailed func(direction string, err error)
	// StreamReopened is called when a stream has replaced one that broke with err.
	StreamReopened func(direction string, err error)
	// Fallback is called when the store continued after a failure of a tier, other than a miss. It
	// used the next tier, or treated the block as absent. key is the block concerned, or the first
	// of several.
	Fallback func(tier string, key block.Key, err error)
	// LoadExpired is called when streams of the host program have waited for a load for
	// Config.WaitMax and are released. The load continues, and its blocks fail with ErrExpired.
	LoadExpired func(err error)
	// Ended is called when a load, dump (durable) or prefetch has ended, with the number of its
	// blocks, the time since it started, and the errors of its blocks, joined.
	Ended func(operation string, blocks int, took time.Duration, err error)
}

// HasEnded calls Ended for an operation that started at start. errs returns its errors.
func (p *Pipeline) HasEnded(operation string, blocks int, start time.Time, errs func() error) {
	if h := p.Hooks.Ended; h != nil {
		h(operation, blocks, p.Clock.Now().Sub(start), errs())
	}
}

func (h *Hooks) loadExpired(err error) {
	if h.LoadExpired != nil {
		h.LoadExpired(err)
	}
}

func (h *Hooks) corrupt(tier string, key block.Key, err error) {
	if h.Corrupt != nil {
		h.Corrupt(tier, key, err)
	}
}

func (h *Hooks) badCopy(key block.Key, err error) {
	if h.BadCopy != nil {
		h.BadCopy(key, err)
	}
}

func (h *Hooks) leftOut(tier string, key block.Key, err error) {
	if h.LeftOut != nil {
		h.LeftOut(tier, key, err)
	}
}

func (h *Hooks) batchFailed(direction string, err error) {
	if h.BatchFailed != nil {
		h.BatchFailed(direction, err)
	}
}

func (h *Hooks) streamReopened(direction string, err error) {
	if h.StreamReopened != nil {
		h.StreamReopened(direction, err)
	}
}
