package store_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/store"
	"github.com/kvlane/kvlane/stream"
)

// slotFlipper flips one bit of a slot when the batch that reads the slot is submitted. That is
// after the check by the CPU and before the copy. The bit stays flipped.
type slotFlipper struct {
	stream.Stream
	at      int64 // offset in the block's first plane of the batch
	flipped *atomic.Bool
}

func (s *slotFlipper) Submit(ctx context.Context, b *mem.Batch) (*stream.Ticket, error) {
	if b.Paged != nil && s.flipped.CompareAndSwap(false, true) {
		g := &b.Paged.Groups[0]
		g.Slots.At(g.Pairs[0].Slot).Sub(g.Planes[0].SlotOff, g.Planes[0].Bytes).Bytes()[s.at] ^= 4
	}
	return s.Stream.Submit(ctx, b)
}

// VerifyAlways detects a bit that flips between the check by the CPU and the copy, whether or not
// the stream computes checksums.
func TestDefectAlwaysFindsABitFlippedBetweenTheCheckAndTheCopy(t *testing.T) {
	t.Parallel()
	for _, every := range []int{noSums, 1, 2} {
		for _, planeBytes := range []int64{leafy, 1000} {
			for _, layerwise := range []bool{false, true} {
				for _, files := range []bool{false, true} {
					t.Run(fmt.Sprintf("every=%d/plane=%d/layerwise=%v/files=%v", every, planeBytes, layerwise, files), func(t *testing.T) {
						t.Parallel()
						flipped := &atomic.Bool{}
						o := rigOptions{
							planeBytes: planeBytes, sumEvery: every, tune: func(c *store.Config) { c.Verify = store.VerifyAlways },
							wrapLoad: func(st stream.Stream) stream.Stream {
								return &slotFlipper{Stream: st, at: 99, flipped: flipped}
							},
						}
						if files {
							o.dirs = []string{t.TempDir()}
						}
						r := newRig(t, o)
						r.dump(1, 2, 3)
						errs := r.load(store.LoadOptions{Layerwise: layerwise}, 1, 2, 3) // load also compares the pages of blocks without an error
						errs = slices.DeleteFunc(errs, func(err error) bool { return err == nil })
						switch {
						case files:
							r.must(errors.Join(errs...))
						case len(errs) != 1:
							t.Fatalf("%d blocks failed, and one bit was flipped", len(errs))
						default:
							wantErr(t, errs[0], errdefs.ErrCorrupt)
						}
						if st := r.st.Stats(); st.Mismatches != 1 || st.BadCopies != 0 {
							t.Fatalf("%d mismatches, %d bad copies", st.Mismatches, st.BadCopies)
						}
					})
				}
			}
		}
	}
}

// VerifyAlways detects a corrupt copy to pages if the stream computes checksums.
func TestDefectAlwaysFindsACorruptTransferToPages(t *testing.T) {
	t.Parallel()
	for _, w := range summingPaths {
		plan := fault.New(1, fault.Nth(opBus, 0))
		r := newRig(t, rigOptions{
			planeBytes: leafy, sumEvery: w.every, path: w.path, tune: func(c *store.Config) { c.Verify = store.VerifyAlways },
			wrapLoad: func(st stream.Stream) stream.Stream { return &bus{Stream: st, plan: plan} },
		})
		r.dump(1, 2)
		r.mustLoad(1, 2)
		if st := r.st.Stats(); st.BadCopies != 1 || st.Mismatches != 0 {
			t.Fatalf("%v: %d bad copies, %d mismatches", w, st.BadCopies, st.Mismatches)
		}
	}
}

// If the stream computes checksums, a dump computes them from the pages and compares the slot with
// them. A block whose copy is corrupt is not stored.
func TestDefectCorruptTransferFromPagesIsNoBlock(t *testing.T) {
	t.Parallel()
	for _, policy := range []store.VerifyPolicy{store.VerifyAlways, store.VerifyFill} {
		for _, w := range summingPaths {
			for _, layerwise := range []bool{false, true} {
				for _, files := range []bool{false, true} {
					t.Run(fmt.Sprintf("%v/%v/layerwise=%v/files=%v", policy, w, layerwise, files), func(t *testing.T) {
						t.Parallel()
						o := rigOptions{planeBytes: leafy, sumEvery: w.every, path: w.path, tune: func(c *store.Config) { c.Verify = policy }}
						if files {
							o.dirs = []string{t.TempDir()}
						}
						r := newRig(t, o)
						r.fill(0, 1)
						r.plan.Add(r.next(w.copyOp(), fault.Nth).Corrupt())
						d, err := r.st.Dump(r.ctx(), r.pages, r.refs(0, 1), store.DumpOptions{Layerwise: layerwise})
						r.must(err)
						for i := range r.o.shards {
							if layerwise {
								r.must(d.SubmitShard(r.ctx(), i))
							}
						}
						r.resolved(d.Done())
						if r.plan.Injected() == 0 {
							t.Fatal("no copy was damaged: the test does not test")
						}
						r.plan.Clear()
						wantErr(t, d.Errs()[0], errdefs.ErrCorrupt)
						r.wantHits(false, 1)
						if st := r.st.Stats(); st.Mismatches != 1 {
							t.Fatalf("%d mismatches", st.Mismatches)
						}
						r.dump(1) // the block can be stored again
						r.mustLoad(1)
					})
				}
			}
		}
	}
}
