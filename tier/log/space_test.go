package log_test

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/dirfs"
	"github.com/kvlane/kvlane/internal/dirfs/faultfs"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/tier/log"
	"github.com/kvlane/kvlane/tier/tiertest"
)

// A log must store blocks even if the disk has less space than one segment.
func TestDefectNoSegmentFitsOnTheDisk(t *testing.T) {
	for what, bound := range map[string]int64{"unbounded": 0, "bounded": 64 << 20} {
		t.Run(what, func(t *testing.T) {
			d := newDisk(t, log.FsyncInterval)
			d.c.SegmentBytes, d.c.MaxBytes = 4<<20, bound
			d.SetLimit(2 << 20)
			tr, err := log.Open(t.Context(), withFS(d.c, d.Process()))
			if err != nil {
				t.Fatal(err)
			}
			n := 0
			for ; err == nil && n < 1000; n++ {
				err = tr.Put(t.Context(), tiertest.Key(n), image(t, d.f, tiertest.Key(n)))
			}
			switch s := tr.Stats(); {
			case bound == 0 && (!errors.Is(err, errdefs.ErrNoSpace) || s.Blocks < 75):
				t.Errorf("%d blocks of %d bytes on a disk of 2 MiB: %v", s.Blocks, d.f.Layout.ImageBytes(), err)
			// The compaction may have emptied more than half of the segments to prepare for more
			// blocks.
			case bound > 0 && (err != nil || s.Evictions == 0 || s.Blocks < 20):
				t.Errorf("%d blocks of %d bytes are left after %d puts and %d evictions: %v", s.Blocks, d.f.Layout.ImageBytes(), n, s.Evictions, err)
			}
			closeTier(t, tr)
		})
	}
}

// If the maximum length of a file is below a segment's, the log makes shorter segments.
func TestDefectSegmentIsLongerThanAFileMayBe(t *testing.T) {
	c := config(t)
	c.SegmentBytes = 4 << 20
	plan := fault.New(1, fault.Nth("allocate", 0).Fail(unix.EFBIG), fault.Nth("allocate", 1).Fail(unix.EFBIG), fault.Nth("allocate", 2).Fail(unix.EFBIG))
	c.FS = faultfs.New(dirfs.OS(), plan, nil)
	tr := open(t, c)
	put(t, tr, c.Formats[0], keys(0, 3)...)
	if got := log.Used(tr); got != c.SegmentBytes/8 {
		t.Errorf("the segment has %d bytes, want an eighth of %d", got, c.SegmentBytes)
	}
}

func withFS(c log.Config, fs dirfs.FS) log.Config {
	c.FS = fs
	return c
}
