package store

import "github.com/kvlane/kvlane/block"

// Hooks are called when something happens that an operator wants to know of. Each may be nil. They are called without
// locks held, from several goroutines at once, on the path of the block concerned: they should return soon, and may
// call the store but must not wait for one of its tasks.
type Hooks struct {
	// Corrupt is called when a block failed its check in a tier and was dropped there.
	Corrupt func(tier string, key block.Key, err error)
	// BadCopy is called when a block failed its check on a page and was right in the slot that it was copied from: the
	// transfer went wrong, or the page's memory. It is copied again, a few times.
	BadCopy func(key block.Key, err error)
	// DurableFailed is called when a dumped block could not be written to a tier.
	DurableFailed func(tier string, key block.Key, err error)
	// BatchFailed is called when a stream failed a batch. What had landed of it before and was verified counts all the same.
	BatchFailed func(direction string, err error)
	// StreamReopened is called when a broken stream has been replaced; err is what broke it.
	StreamReopened func(direction string, err error)
	// Fallback is called when a tier failed, other than by a miss, and the store went on without it: it asked the next
	// tier, or took the block for one that the tier does not have. key is the block concerned, the first of several.
	Fallback func(tier string, key block.Key, err error)
	// LoadExpired is called when streams of the host program were let go that had waited for a load for Config.WaitMax. The load
	// goes on, and its blocks fail with ErrExpired.
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

func (h *Hooks) durableFailed(tier string, key block.Key, err error) {
	if h.DurableFailed != nil {
		h.DurableFailed(tier, key, err)
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
