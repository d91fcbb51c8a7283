package store_test

import (
	"context"
	"runtime"
	"testing"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/store"
	"github.com/kvlane/kvlane/stream"
	"github.com/kvlane/kvlane/tier"
	"github.com/kvlane/kvlane/tier/file"
)

// firstBatch is a stream that counts the blocks of its first batch.
type firstBatch struct {
	stream.Stream
	blocks int
}

func (f *firstBatch) Submit(ctx context.Context, b *mem.Batch) (*stream.Ticket, error) {
	if f.blocks == 0 && b.Paged != nil {
		for i := range b.Paged.Groups {
			f.blocks += len(b.Paged.Groups[i].Pairs)
		}
	}
	return f.Stream.Submit(ctx, b)
}

// After a reader had read the first block, it started its next read before the load that waited for
// this block could run. The copy of the block started late.
func TestDefectReaderDelaysTheCopyOfItsBlock(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	const blocks = 20 // blocks of 1 MiB, more than the size up to which readers of small loads yield
	fast, first := &fastTier{headers: make(map[block.Key][]byte)}, &firstBatch{}
	r := newRig(t, rigOptions{
		slots: 2 * blocks, pages: blocks, shards: 1, planes: 1, planeBytes: 1 << 20, still: true, sumEvery: 1, window: true, dirs: []string{t.TempDir()},
		wrapFile: func(below tier.Tier) tier.Tier {
			fast.Tier, _ = below.(*file.Tier)
			return fast
		},
		wrapLoad: func(st stream.Stream) stream.Stream {
			first.Stream = st
			return first
		},
		tune: func(c *store.Config) { c.Readers = 1 },
	})
	ns := make([]int, blocks)
	for i := range ns {
		ns[i] = i
	}
	r.dump(ns...)
	fast.keep(r, ns)
	ctx := r.ctx()
	const tries = 9
	prompt := 0
	for range tries {
		first.blocks = 0
		task, err := r.st.Load(ctx, nil, r.pages, r.refs(0, ns...), store.LoadOptions{})
		r.must(err)
		r.must(task.Wait(ctx))
		if first.blocks == 1 {
			prompt++
		}
	}
	if prompt <= tries/2 { // the scheduler may run another goroutine first
		t.Errorf("%d of %d first batches were submitted before the second block was read", prompt, tries)
	}
}
