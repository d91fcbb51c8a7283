package pipeline

import "github.com/kvlane/kvlane/block"

// Hooks are called on events that an operator may want to know of. Each may be nil. They are called
// without locks, by several goroutines at once, and delay the block concerned. They may call the
// store, but must not wait for a task.
type Hooks struct {
	// Corrupt is called when a block failed its check in a tier and was dropped there.
	Corrupt func(tier string, key block.Key, err error)
	// BadCopy is called when a block failed its check on a page but not in its slot: the copy or
	// the page's memory is at fault. The block is copied again, up to three times in all.
	BadCopy func(key block.Key, err error)
	// LeftOut is called when a tier failed to store a dumped block (DumpTask.LeftOut).
	LeftOut func(tier string, key block.Key, err error)
	// BatchFailed is called when a stream failed a batch. Parts that completed before and were
	// verified count.
	BatchFailed func(direction string, err error)
	// StreamReopened is called when a stream has replaced one that broke with err.
	StreamReopened func(direction string, err error)
	// Fallback is called when a tier failed, other than by a miss, and the store went on without
	// it. It used the next tier, or took the block as absent. key is the block concerned, the first
	// of several.
	Fallback func(tier string, key block.Key, err error)
	// LoadExpired is called when streams of the host program have waited for a load for
	// Config.WaitMax and are released. The load goes on, and its blocks fail with ErrExpired.
	LoadExpired func(err error)
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
