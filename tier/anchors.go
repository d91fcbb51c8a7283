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

// inRun is the place of a block in its run. If only the anchor is known, index is -1 and part is
// zero.
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
	r, ok := a.get(key)
	return r.anchor, ok
}

// Part returns the anchor of a block and the first block of its part, and false if they are not
// recorded.
func (a *Anchors) Part(key block.Key) (anchor, part block.Key, ok bool) {
	r, ok := a.get(key)
	return r.anchor, r.part, ok && r.index >= 0
}

func (a *Anchors) get(key block.Key) (inRun, bool) {
	if a == nil {
		return inRun{}, false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.find(key)
}

// Prompt records the runs of a prompt. keys are its blocks from the first. If the first is recorded
// as another block of a run, or by Set, Prompt is Follow.
func (a *Anchors) Prompt(keys []block.Key) {
	if a == nil || len(keys) == 0 {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if r, ok := a.find(keys[0]); ok && r.index != 0 {
		a.follow(block.Key{}, keys)
		return
	}
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
	a.follow(before, keys)
}

// follow implements Follow. The caller holds mu.
func (a *Anchors) follow(before block.Key, keys []block.Key) {
	last, known := inRun{index: RunBlocks - 1}, true
	if before != (block.Key{}) {
		last, known = a.find(before)
		known = known && last.index >= 0
	}
	for _, key := range keys {
		r, found := a.find(key)
		if !found && !known {
			continue
		} else if !found {
			r = last.next(key)
		}
		a.set(key, r)
		last, known = r, r.index >= 0
	}
}

// Set records the anchor of each of keys. Blocks that follow them get no anchor from Follow, unless
// they start a run that is recorded.
func (a *Anchors) Set(keys, anchors []block.Key) {
	if a == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for i, key := range keys {
		r, ok := a.find(key)
		if !ok || r.anchor != anchors[i] {
			r = inRun{anchor: anchors[i], index: -1}
		}
		a.set(key, r)
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
