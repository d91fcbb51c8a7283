package store

import (
	"errors"
	"fmt"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/tier"
)

// unproven is a block that was read from a tier below without being verified (tier.Reader), in the hands of the load that did so. It
// still is a fill, which nobody else finds, until what has reached the page has shown that it is right. It implements tier.Slot.
type unproven struct {
	fill tier.Fill
	sums []uint64 // the header's, as they were when the block was read
}

var errUnproven = errors.New("what had been read was not verified to its end")

// Index returns the slot's number.
func (u *unproven) Index() uint32 { return u.fill.Index() }

// Extent returns the slot's bytes.
func (u *unproven) Extent() mem.Extent { return u.fill.Extent() }

// Sums returns the checksums of the block's shards, which its header had; nil where they are not block.SumTree.
func (u *unproven) Sums() []uint64 {
	if len(u.sums) == 0 {
		return nil
	}
	return u.sums
}

// Corrupt ends the fill; who waits for it reads the block anew.
func (u *unproven) Corrupt(cause error) { u.fill.Abort(cause) }

// Release ends the fill, unless it has ended: what nobody has verified, nobody may find.
func (u *unproven) Release() { u.fill.Abort(errUnproven) }

// unproven says whether block i was read without being verified, and has not been since.
func (t *LoadTask) unproven(i int32) bool {
	_, is := t.sc.items[i].slot.(*unproven)
	return is
}

// prove publishes block i, which has been verified, if nobody has done so. Where the cache refuses, its slot is the load's no more.
func (t *LoadTask) prove(i int32) error {
	it := &t.sc.items[i]
	u, is := it.slot.(*unproven)
	if !is {
		return nil
	}
	slot, err := t.s.publish(u.fill)
	if err != nil {
		t.s.index.FellBack(t.s.cache, t.sc.refs[i].Key, err)
		return err
	}
	it.slot = slot
	return nil
}

// room returns where a job may keep what it reads of block i without verifying it; nil: it has to be verified. That is so once something
// about the block was wrong, so that the tier that has it wrong sets it aside.
func (t *LoadTask) room(i int32) *unproven {
	it := &t.sc.items[i]
	if !t.raw || it.wrong > 0 || it.cause != nil {
		return nil
	}
	n := t.s.formats.MaxShards()
	u := &t.sc.unproven[i]
	u.sums = t.sc.unprovenSums[int(i)*n : int(i)*n : int(i+1)*n]
	return u
}

// misread counts that what was read of block i was wrong, though the tier has it right: otherwise it is counted where it is found.
func (t *LoadTask) misread(i int32, why error) {
	it := &t.sc.items[i]
	if !it.misread {
		return
	}
	it.misread = false
	t.s.count.corrupt.Add(1)
	t.s.cfg.Hooks.corrupt(t.s.tiers[it.from].Name(), t.sc.refs[i].Key, fmt.Errorf("it was read wrong: %w: %w", errdefs.ErrCorrupt, why))
}
