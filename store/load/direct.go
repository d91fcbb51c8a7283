package load

import (
	"fmt"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/store/pipeline"
	"github.com/kvlane/kvlane/stream"
)

// Blocks of direct storage are read into slots of device memory, and copied from there to pages.
// The sums of that copy verify them. A block that fails its check, or whose copy has no sums, is
// read again through the cache, so that the CPU can verify it.

var errNoSums = fmt.Errorf("the copy from device memory has no checksums: %w", errdefs.ErrNotSupported)

// sumsOf returns memory for the checksums of block i.
func (t *Task) sumsOf(i int32) []uint64 {
	n := t.p.Map.Formats.MaxShards()
	return t.sc.unverifiedSums[int(i)*n : int(i)*n : int(i+1)*n]
}

// directBlock returns memory for reading block i directly, or nil if the block must pass through
// the cache. After a failure of the block the CPU must be able to verify it.
func (t *Task) directBlock(i int32) *pipeline.DirectBlock {
	it := &t.sc.items[i]
	if !t.direct || it.badCopies > 0 || it.cause != nil {
		return nil
	}
	b := &t.sc.direct[i]
	b.Reset(t.sumsOf(i), t.promotion == PromoteNone)
	return b
}

// isDirect reports whether block i is in a slot of device memory.
func (t *Task) isDirect(i int32) bool {
	_, ok := t.sc.items[i].slot.(*pipeline.DirectBlock)
	return ok
}

// noteDirect records the reason if block i should have been read directly but was not.
func (t *Task) noteDirect(i int32) {
	if !t.direct {
		return
	}
	if b := &t.sc.direct[i]; b.Failed != nil {
		t.noteNotDirect(b.Failed)
		b.Failed = nil
	}
}

// noteNotDirect records the first reason why a block of the load passes through host memory.
func (t *Task) noteNotDirect(why error) {
	if t.notDirect {
		return
	}
	t.notDirect = true
	t.base.AddNotDirect(t.l.Env.Stream.Name(), &t.p.Count.LoadPaths, why)
}

// addDirect records the direct reads of a group's blocks as one completion.
func (t *Task) addDirect(g *group) {
	if !g.direct {
		return
	}
	c := stream.Completion{Path: stream.PathCuFile, Reason: t.p.Direct.Reason}
	for i := range g.All {
		b := &t.sc.direct[i]
		c.Bytes += t.p.Map.Formats[t.sc.Groups[i]].Layout.ImageBytes()
		c.Pieces++
		if c.Started.IsZero() || b.Started.Before(c.Started) {
			c.Started = b.Started
		}
		if b.Finished.After(c.Finished) {
			c.Finished = b.Finished
		}
	}
	t.addCompletion(c)
}

func (t *Task) addCompletion(c stream.Completion) {
	t.base.AddCompletion(t.l.Env.Stream.Name(), &t.p.Count.LoadPaths, c, c.Started, nil)
}

// retryRead drops a direct block that failed with err, and reads it through the cache. If the block
// was corrupt, that read shows whether the file or the direct read was at fault.
func (t *Task) retryRead(i int32, err error) {
	it := &t.sc.items[i]
	if pipeline.IsCorrupt(err) {
		it.corruptTier = it.tier
	}
	t.dropSlot(it)
	t.retry(i, err)
}
