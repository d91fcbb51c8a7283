package tier

import (
	"sync"

	"github.com/kvlane/kvlane/block"
)

// RunBlocks is the number of blocks in a run: consecutive blocks of a prompt, counted from its
// start. The key of the first block is the anchor of the run.
const RunBlocks = 64

// PartBlocks is the number of blocks in a part of a run, counted from the start of the run. Prompts
// that branch within a run have different parts after the branch.
const PartBlocks = 8

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
	part   block.Key // the first block of its part
	index  int
}

// next returns the place of the block key, which follows r.
func (r inRun) next(key block.Key) inRun {
	n := inRun{r.anchor, r.part, (r.index + 1) % RunBlocks}
	if n.index == 0 {
		n.anchor = key
	}
	if n.index%PartBlocks == 0 {
		n.part = key
	}
	return n
}

// NewAnchors returns an empty Anchors for up to most blocks.
func NewAnchors(most int) *Anchors {
	return &Anchors{most: most, recent: make(map[block.Key]inRun)}
}

// Of returns the anchor of a block, and false if it is not recorded.
func (a *Anchors) Of(key block.Key) (block.Key, bool) {
	anchor, _, ok := a.Part(key)
	return anchor, ok
}

// Part returns the anchor of a block and the first block of its part, and false if they are not
// recorded.
func (a *Anchors) Part(key block.Key) (anchor, part block.Key, ok bool) {
	if a == nil {
		return block.Key{}, block.Key{}, false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	r, ok := a.find(key)
	return r.anchor, r.part, ok
}

// Prompt records the runs of a prompt. keys are its blocks from the first.
func (a *Anchors) Prompt(keys []block.Key) {
	if a == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	last := inRun{index: RunBlocks - 1}
	for _, key := range keys {
		last = last.next(key)
		a.set(key, last)
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
		if !found && !known {
			continue
		} else if !found {
			r = last.next(key)
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
