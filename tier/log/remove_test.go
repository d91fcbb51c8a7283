package log_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/dirfs/faultfs"
	"github.com/kvlane/kvlane/tier"
	"github.com/kvlane/kvlane/tier/log"
	"github.com/kvlane/kvlane/tier/tiertest"
)

// must reports the errors of a test's steps.
func (s *session) must(errs ...error) {
	s.Helper()
	if err := errors.Join(errs...); err != nil {
		s.Fatal(err)
	}
}

// absent checks that a new process finds none of the keys, but all of the others.
func (d *disk) absent(keys, others []block.Key) {
	d.Helper()
	s := d.begin()
	defer s.die()
	for _, key := range keys {
		if got := state(d.T, s.tr, key); got != tier.Absent {
			d.Errorf("block %s, which was removed, is %s", key, got)
		}
	}
	for _, key := range others {
		if err := get(d.T, s.tr, d.f, key); err != nil {
			d.Errorf("block %s, which was not removed: %v", key, err)
		}
	}
}

// A removed block is not found again after a kill or a power failure, also if the segment with its
// deletion was emptied and the checkpoint is lost.
func TestRemovedBlockStaysRemoved(t *testing.T) {
	removed, others := append(keys(4, 8), tiertest.Key(1)), []block.Key{tiertest.Key(0), tiertest.Key(2), tiertest.Key(3)}
	for name, do := range map[string]func(s *session){
		"only removed":       func(*session) {},
		"with a checkpoint":  func(s *session) { s.checkpoint() },
		"moved":              func(s *session) { s.must(log.Seal(s.tr), log.Compact(s.tr)) },
		"moved twice":        func(s *session) { s.must(log.Seal(s.tr), log.Compact(s.tr), log.Seal(s.tr), log.Compact(s.tr)) },
		"without checkpoint": func(s *session) { s.must(log.Seal(s.tr), log.Compact(s.tr)); s.loseCheckpoint() },
	} {
		for _, policy := range []log.FsyncPolicy{log.FsyncAlways, log.FsyncInterval, log.FsyncNever} {
			t.Run(fmt.Sprint(name, policy), func(t *testing.T) {
				everySeed(t, policy, func(d *disk, power faultfs.Survival) {
					s := d.begin()
					put(d.T, s.tr, d.f, keys(0, 4)...)
					s.must(log.Seal(s.tr))
					s.checkpoint()
					put(d.T, s.tr, d.f, keys(4, 8)...)
					r, err := s.tr.Remove(d.Context(), append(keys(4, 8), tiertest.Key(1), tiertest.Key(9)))
					if s.must(err, r.Left); len(r.Keys) != 5 || r.Bytes != 5*d.f.Layout.ImageBytes() {
						d.Errorf("removed %d blocks, %d bytes", len(r.Keys), r.Bytes)
					}
					do(s)
					if policy == log.FsyncNever { // then the others may be lost
						s.die()
						d.absent(removed, others)
						return
					}
					d.PowerFail(power)
					s.die()
					d.absent(removed, others)
				})
			})
		}
	}
}

func (s *session) loseCheckpoint() {
	s.Helper()
	dir, err := s.fs.OpenDir(s.c.Dir)
	s.must(err)
	if err := dir.Remove("index"); err != nil {
		s.Fatal(err)
	}
	f, err := dir.Open(".", 0o200000) // O_DIRECTORY
	s.must(err)
	s.must(f.Sync(), f.Close(), dir.Close())
}

// Under FsyncNever removals are durable too, although blocks are not.
func TestRemovalIsDurableUnderEveryPolicy(t *testing.T) {
	everySeed(t, log.FsyncNever, func(d *disk, _ faultfs.Survival) {
		s := d.begin()
		put(d.T, s.tr, d.f, keys(0, 4)...)
		s.die()
		d.c.Fsync = log.FsyncAlways // opening makes the blocks durable
		d.begin().die()
		d.c.Fsync = log.FsyncNever
		s = d.begin()
		_, err := s.tr.Remove(d.Context(), keys(1, 2))
		s.must(err)
		d.PowerFail(faultfs.KeepSynced())
		s.die()
		d.absent(keys(1, 2), append(keys(0, 1), keys(2, 4)...))
	})
}

// A deletion is dropped once no segment can contain the block. Otherwise deletions would add up.
func TestDeletionsAreDropped(t *testing.T) {
	d := newDisk(t, log.FsyncAlways)
	s := d.begin()
	defer s.die()
	for range 5 {
		put(t, s.tr, d.f, keys(0, 4)...)
		r, err := s.tr.Remove(t.Context(), keys(0, 4))
		s.must(err, r.Left, log.Seal(s.tr), log.Compact(s.tr), log.Seal(s.tr), log.Compact(s.tr))
	}
	if n := log.Used(s.tr); n > 0 {
		t.Errorf("%d bytes in %d segments are left", n, log.Segments(s.tr))
	}
}

// Remove refuses retained blocks, and removes them after their release.
func TestRemoveRefusesRetainedBlocks(t *testing.T) {
	c := config(t)
	tr := open(t, c)
	put(t, tr, c.Formats[0], keys(0, 3)...)
	if n, err := tr.Retain(t.Context(), keys(1, 2)); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	r, err := tr.Remove(t.Context(), keys(0, 3))
	if err != nil || len(r.Keys) != 2 || !errors.Is(r.Left, errdefs.ErrBusy) {
		t.Errorf("%+v, %v", r, err)
	}
	if err := get(t, tr, c.Formats[0], tiertest.Key(1)); err != nil {
		t.Errorf("the retained block: %v", err)
	}
	if _, err := log.Remove(t.Context(), c.Dir, log.Selection{}); !errors.Is(err, errdefs.ErrBusy) || !strings.Contains(err.Error(), "process ") {
		t.Errorf("remove blocks of an open log: %v", err)
	}
	tr.Release(keys(1, 2))
	if r, err = tr.Remove(t.Context(), keys(0, 3)); err != nil || len(r.Keys) != 1 || r.Left != nil {
		t.Errorf("%+v, %v", r, err)
	}
}

// Remove selects blocks by key, identity and age.
func TestRemoveSelects(t *testing.T) {
	for name, c := range map[string]struct {
		sel  log.Selection
		want int
	}{
		"keys":             {log.Selection{Keys: append(keys(0, 2), tiertest.Key(77))}, 2},
		"no keys":          {log.Selection{Keys: []block.Key{}}, 0},
		"identity":         {log.Selection{Identity: tiertest.NewFormat(t).Identity}, 4},
		"another identity": {log.Selection{Identity: block.Digest{1}}, 0},
		"old":              {log.Selection{Before: time.Now().Add(-time.Hour)}, 0},
		"new":              {log.Selection{Before: time.Now().Add(time.Hour), Keys: keys(1, 4)}, 3},
	} {
		t.Run(name, func(t *testing.T) {
			config := config(t)
			tr := open(t, config)
			put(t, tr, config.Formats[0], keys(0, 4)...)
			closeTier(t, tr)
			r, err := log.Remove(t.Context(), config.Dir, c.sel)
			if err != nil || r.Left != nil || len(r.Keys) != c.want || r.Bytes != int64(c.want)*config.Formats[0].Layout.ImageBytes() {
				t.Errorf("%+v, %v", r, err)
			}
			in, err := log.Inspect(t.Context(), config.Dir)
			if err != nil || in.Blocks != int64(4-c.want) {
				t.Errorf("%d blocks are left, %v", in.Blocks, err)
			}
			if segments, _ := filepath.Glob(config.Dir + "/seg-*"); c.want == 4 && len(segments) > 0 {
				t.Errorf("%v are left", segments)
			}
		})
	}
}

// Blocks are removed while other goroutines put, retain and read them. No read returns wrong bytes,
// and no retained block is missing.
func TestRemoveDuringReadsAndWrites(t *testing.T) {
	c := config(t)
	c.MaxBytes = 64 * segmentBytes
	tr, f := open(t, c), c.Formats[0]
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	tiertest.RemoveDuringUse(ctx, t, tr, f, func(ctx context.Context, keys []block.Key) (int, error) {
		r, err := tr.Remove(ctx, keys)
		if errors.Is(r.Left, errdefs.ErrBusy) {
			r.Left = nil
		}
		return len(r.Keys), errors.Join(err, r.Left)
	})
}
