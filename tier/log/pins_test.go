package log_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/dirfs"
	"github.com/kvlane/kvlane/internal/dirfs/faultfs"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/tier"
	"github.com/kvlane/kvlane/tier/file"
	"github.com/kvlane/kvlane/tier/internal/blockdir"
	"github.com/kvlane/kvlane/tier/log"
	"github.com/kvlane/kvlane/tier/tiertest"
)

// Emptied segments keep their pinned blocks, with half of the bound pinned.
func TestPinnedStays(t *testing.T) {
	c := config(t)
	c.MaxBytes = 16 * segmentBytes
	tr := open(t, c)
	tiertest.PinnedStays(t, tr, c.Formats[0])
}

// Pinned blocks are moved out of segments with other blocks, so that the segments can be removed.
func TestPinnedBlocksAreMoved(t *testing.T) {
	c := config(t)
	tr := open(t, c)
	var some []block.Key
	for i, key := range keys(0, 64) {
		put(t, tr, c.Formats[0], key)
		if i%8 == 0 {
			some = append(some, key)
		}
	}
	if err := tr.Pin(t.Context(), some); err != nil {
		t.Fatal(err)
	}
	before := log.Used(tr)
	n, err := tr.GC(t.Context(), before/4)
	if after := log.Used(tr); n == 0 || err != nil || after > before/4 {
		t.Errorf("%d blocks were evicted, and %d of %d bytes are left: %v", n, after, before, err)
	}
	for _, key := range some {
		if err := get(t, tr, c.Formats[0], key); err != nil {
			t.Error(err)
		}
	}
}

// Pins and their blocks survive a kill and a power failure under every policy, and removed pins do
// not come back.
func TestPinsSurvive(t *testing.T) {
	for _, policy := range []log.FsyncPolicy{log.FsyncAlways, log.FsyncInterval, log.FsyncNever} {
		t.Run(fmt.Sprint(policy), func(t *testing.T) {
			everySeed(t, policy, func(d *disk, power faultfs.Survival) {
				s := d.begin()
				put(d.T, s.tr, d.f, keys(0, 4)...)
				s.must(s.tr.Pin(d.Context(), keys(0, 3)), s.tr.Unpin(d.Context(), keys(1, 2)))
				d.PowerFail(power)
				s.die()
				s = d.begin()
				defer s.die()
				if st := s.tr.Stats(); st.Pinned != 2 {
					d.Errorf("after a power failure: %+v", st)
				}
				put(d.T, s.tr, d.f, keys(4, 8)...)
				if _, err := s.tr.GC(d.Context(), 0); err != nil {
					d.Error(err)
				}
				for i, want := range []error{nil, errdefs.ErrNotFound, nil, errdefs.ErrNotFound} {
					if err := get(d.T, s.tr, d.f, tiertest.Key(i)); !errors.Is(err, want) {
						d.Errorf("block %d: %v, want %v", i, err, want)
					}
				}
			})
		})
	}
}

// The pins of a directory without a tier: Pin selects, Remove and GC respect them.
func TestPinOfADirectory(t *testing.T) {
	c := config(t)
	f := c.Formats[0]
	tr := open(t, c)
	put(t, tr, f, keys(0, 6)...)
	if _, err := log.Pin(t.Context(), c.Dir, log.Selection{}, 0); !errors.Is(err, errdefs.ErrBusy) || !strings.Contains(err.Error(), "process ") {
		t.Errorf("pin in an open directory: %v", err)
	}
	if err := tr.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	size := f.Layout.ImageBytes()
	if _, err := log.Pin(t.Context(), c.Dir, log.Selection{}, 0); !errors.Is(err, file.ErrPinLimit) {
		t.Errorf("pin of all blocks: %v", err)
	}
	p, err := log.Pin(t.Context(), c.Dir, log.Selection{Keys: keys(0, 3), Identity: f.Identity}, 0)
	if err != nil || len(p.Keys) != 3 || p.Bytes != 3*size || p.Total != (log.Totals{Blocks: 3, Bytes: 3 * size}) {
		t.Errorf("pin: %+v, %v", p, err)
	}
	if p, err = log.Pin(t.Context(), c.Dir, log.Selection{Keys: keys(2, 4)}, 12*size); err != nil || len(p.Keys) != 1 || len(p.Selected) != 2 {
		t.Errorf("pin: %+v, %v", p, err)
	}
	if r, err := log.Remove(t.Context(), c.Dir, log.Selection{Keys: keys(3, 5)}); err != nil || len(r.Keys) != 1 || !errors.Is(r.Left, file.ErrPinned) {
		t.Errorf("remove: %+v, %v", r, err)
	}
	r, err := log.GC(t.Context(), c.Dir, 0, nil)
	if err != nil || r.Left != nil || r.Removed != 1 {
		t.Errorf("collect: %+v, %v", r, err)
	}
	if in, err := log.Inspect(t.Context(), c.Dir); err != nil || in.Blocks != 4 || in.Pinned != in.Totals || in.SegmentBytes != r.After {
		t.Errorf("inspect: %+v, %v; GC left %d bytes", in, err, r.After)
	}
	if p, err = log.Unpin(t.Context(), c.Dir, log.Selection{}); err != nil || len(p.Keys) != 4 || p.Total.Blocks != 0 {
		t.Errorf("unpin: %+v, %v", p, err)
	}
	if r, err := log.GC(t.Context(), c.Dir, 0, nil); err != nil || r.Removed != 4 {
		t.Errorf("collect unpinned blocks: %+v, %v", r, err)
	}
}

// If the list of pins is damaged, its intact entries are in force, and opening the log writes it
// again.
func TestDamagedPins(t *testing.T) {
	c := config(t)
	f := c.Formats[0]
	tr := open(t, c)
	put(t, tr, f, keys(0, 4)...)
	if err := tr.Pin(t.Context(), keys(0, 3)); err != nil {
		t.Fatal(err)
	}
	if err := tr.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(c.Dir, blockdir.PinsName)
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	b[len(b)/2] ^= 1
	if err := os.WriteFile(name, b, 0o600); err != nil {
		t.Fatal(err)
	}
	r, err := log.Verify(t.Context(), c.Dir, nil)
	if err != nil || len(r.Findings) != 1 || r.Findings[0].Path != name || r.Findings[0].Problem != blockdir.Damaged {
		t.Errorf("%+v, %v", r.Findings, err)
	}
	tr = open(t, c)
	if st := tr.Stats(); st.Pinned != 2 || st.Errors != 1 {
		t.Errorf("%+v", st)
	}
	if n := strings.Join(tr.Notes(), "\n"); !strings.Contains(n, "2 entries are intact") {
		t.Errorf("%q", n)
	}
	if r, err := log.Verify(t.Context(), c.Dir, nil); err != nil || !r.Clean() {
		t.Errorf("%+v, %v", r.Findings, err)
	}
}

// The pin of a block that is no longer in the log is removed when the log is opened.
func TestPinOfALostBlock(t *testing.T) {
	c := config(t)
	f := c.Formats[0]
	tr := open(t, c)
	put(t, tr, f, keys(0, 1)...)
	if err := tr.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	set := blockdir.PinSet{tiertest.Key(0): true, tiertest.Key(1): true}
	if err := os.WriteFile(filepath.Join(c.Dir, blockdir.PinsName), set.Encode(), 0o600); err != nil {
		t.Fatal(err)
	}
	tr = open(t, c)
	if st := tr.Stats(); st.Pinned != 1 || st.Errors != 0 {
		t.Errorf("%+v", st)
	}
	put(t, tr, f, keys(1, 2)...)
	if err := tr.Delete(t.Context(), tiertest.Key(1)); err != nil {
		t.Error(err)
	}
}

// Pin and Unpin while operation N of each kind fails, for all N. A failed call reports the fault.
// The blocks that are pinned afterwards are those that the calls have reported.
func TestPinWithEveryOperationFailing(t *testing.T) {
	for _, op := range []string{"open", "rename", "remove", "write", "sync", "close"} {
		t.Run(op, func(t *testing.T) {
			testkit.Sweep(t, op, nil, func(t *testing.T, plan *fault.Plan) error {
				c := config(t)
				faults := faultfs.New(dirfs.OS(), nil, nil)
				c.FS, c.Fsync = faults, log.FsyncNever
				tr := open(t, c)
				put(t, tr, c.Formats[0], keys(0, 2)...)
				if err := tr.Pin(t.Context(), keys(1, 2)); err != nil {
					t.Fatal(err)
				}
				faults.Use(plan)
				perr := tr.Pin(t.Context(), keys(0, 1))
				uerr := tr.Unpin(t.Context(), keys(1, 2))
				faults.Use(nil)
				if err := tr.Close(t.Context()); err != nil {
					t.Error(err)
				}
				var left []block.Key
				if err := log.List(t.Context(), c.Dir, func(e log.Entry) error {
					if e.Pinned {
						left = append(left, e.Key)
					}
					return nil
				}); err != nil {
					t.Fatal(err)
				}
				if perr == nil && (len(left) == 0 || left[0] != tiertest.Key(0)) {
					t.Errorf("pin succeeded, and %v are pinned", left)
				}
				if uerr == nil && len(left) > 0 && left[len(left)-1] == tiertest.Key(1) {
					t.Errorf("unpin succeeded, and %v are pinned", left)
				}
				if r, err := log.GC(t.Context(), c.Dir, 0, nil); err != nil || int(r.Removed) != 2-len(left) {
					t.Errorf("%+v, %v, with %d pinned", r, err, len(left))
				}
				return errors.Join(perr, uerr)
			})
		})
	}
}

// A pinned block that cannot be moved, because the header of its group is damaged, keeps its
// segment.
func TestPinnedBlockWithADamagedHeaderStays(t *testing.T) {
	c := config(t)
	tr := open(t, c)
	put(t, tr, c.Formats[0], keys(0, 3)...)
	if err := tr.Pin(t.Context(), keys(0, 1)); err != nil {
		t.Fatal(err)
	}
	flip(t, segmentFiles(t, c.Dir)[0], 4096+200) // the header of the first group
	for _, want := range []tier.State{tier.Ready, tier.Absent} {
		if _, err := tr.GC(t.Context(), 0); err != nil {
			t.Error(err)
		}
		for i := range 3 {
			if got := state(t, tr, tiertest.Key(i)); i == 0 && got != want || i > 0 && got != tier.Absent {
				t.Errorf("block %d is %s; the pinned one must be %s", i, got, want)
			}
		}
		if err := tr.Unpin(t.Context(), keys(0, 1)); err != nil {
			t.Fatal(err)
		}
	}
}
