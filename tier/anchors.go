package tier

import (
	"sync"

	"github.com/kvlane/kvlane/block"
)

// RunBlocks is the number of blocks in a run: consecutive blocks of a prompt, counted from its
// start. The key of the first block is the anchor of the run.
const RunBlocks = 64

// Placed is a Tier that places blocks by the anchors of their runs, so that a run is in one place.
// A store calls SetAnchors once, when it opens. It records the runs of a prompt before it uses the
// blocks.
type Placed interface {
	SetAnchors(a *Anchors)
}

// Anchors records the anchors of recently used blocks, up to a fixed number. The methods are safe
// for concurrent use. A nil Anchors has no blocks.
type Anchors struct {
	mu          sync.Mutex
	most        int
	recent, old map[block.Key]inRun // old has the blocks before the last most/2 changes
}

// inRun is the place of a block in its run.
type inRun struct {
	anchor block.Key
	index  int
}

// NewAnchors returns an empty Anchors for up to most blocks.
func NewAnchors(most int) *Anchors {
	return &Anchors{most: most, recent: make(map[block.Key]inRun)}
}

// Of returns the anchor of a block, and false if it is not recorded.
func (a *Anchors) Of(key block.Key) (block.Key, bool) {
	if a == nil {
		return block.Key{}, false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	r, ok := a.find(key)
	return r.anchor, ok
}

// Prompt records the runs of a prompt. keys are its blocks from the first.
func (a *Anchors) Prompt(keys []block.Key) {
	if a == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := range keys {
		a.set(keys[i], inRun{keys[i-i%RunBlocks], i % RunBlocks})
	}
}

// Follow records the runs of consecutive blocks. before is the block before the first, or zero if
// the first block is the start of a prompt or already recorded. Recorded blocks keep their anchors.
// Blocks whose previous block is not recorded are not recorded.
func (a *Anchors) Follow(before block.Key, keys []block.Key) {
	if a == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	last, known := inRun{index: RunBlocks - 1}, true
	if before != (block.Key{}) {
		last, known = a.find(before)
	}
	for _, key := range keys {
		r, found := a.find(key)
		switch {
		case found:
		case !known:
			continue
		case last.index == RunBlocks-1:
			r = inRun{anchor: key}
		default:
			r = inRun{last.anchor, last.index + 1}
		}
		a.set(key, r)
		last, known = r, true
	}
}

// find returns the place of a block. The caller holds mu.
func (a *Anchors) find(key block.Key) (inRun, bool) {
	if r, ok := a.recent[key]; ok {
		return r, true
	}
	r, ok := a.old[key]
	return r, ok
}

// set records the place of a block. The caller holds mu.
func (a *Anchors) set(key block.Key, r inRun) {
	if len(a.recent) >= a.most/2 {
		a.old, a.recent = a.recent, make(map[block.Key]inRun)
	}
	a.recent[key] = r
}
