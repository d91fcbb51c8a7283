package file_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/jonboulle/clockwork"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/dirfs"
	"github.com/kvlane/kvlane/internal/dirfs/faultfs"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/tier"
	"github.com/kvlane/kvlane/tier/file"
	"github.com/kvlane/kvlane/tier/tiertest"
)

func TestVerifyFindsEverything(t *testing.T) {
	c := config(t)
	dir := c.Dirs[0]
	tr := open(t, c)
	all := keys(0, 6)
	older := c.Formats[0]
	older.Sum = block.SumXXH3
	put(t, tr, older, all[5])
	put(t, tr, c.Formats[0], all[:5]...)
	var seen int64
	r, err := file.Verify(t.Context(), dir, func(blocks, bytes int64) {
		if seen++; blocks != seen || bytes != seen*c.Formats[0].Layout.ImageBytes() {
			t.Errorf("progress: %d blocks of %d bytes after %d", blocks, bytes, seen)
		}
	})
	if err != nil || !r.Clean() || r.Blocks != 6 || seen != 6 || r.LiveSessions != 1 ||
		r.Sums[block.SumXXH3] != 1 || r.Sums[block.SumTree] != 5 {
		t.Errorf("a good directory: %+v, %v", r, err)
	}
	flip(t, path(dir, all[0]), 4096)
	truncate(t, path(dir, all[1]), 100)
	wrong := filepath.Join(dir, all[3].String()[:2], all[2].String())
	if err := os.Rename(path(dir, all[2]), wrong); err != nil {
		t.Fatal(err)
	}
	dead := filepath.Join(dir, "tmp", "feed")
	if err := os.Mkdir(dead, 0o700); err != nil {
		t.Fatal(err)
	}
	want := map[string]file.Problem{
		path(dir, all[0]): file.Damaged, path(dir, all[1]): file.Damaged, wrong: file.Misplaced,
		filepath.Join(dead, "1"): file.Leftover, filepath.Join(dir, "x.txt"): file.Foreign,
		filepath.Join(dir, all[3].String()[:2], "notes"): file.Foreign,
	}
	for p, problem := range want {
		if problem == file.Leftover || problem == file.Foreign {
			write(t, p, "x")
		}
	}
	r, err = file.Verify(t.Context(), dir, nil)
	if err != nil || r.Clean() || r.Blocks != 5 {
		t.Errorf("%+v, %v", r, err)
	}
	for _, f := range r.Findings {
		if want[f.Path] != f.Problem || f.Detail == "" {
			t.Errorf("found %+v", f)
		}
		delete(want, f.Path)
	}
	if len(want) > 0 {
		t.Errorf("verify did not find %v", want)
	}
	if err := get(t, tr, c.Formats[0], all[0]); !errors.Is(err, errdefs.ErrCorrupt) {
		t.Errorf("get of a damaged block after Verify: %v", err)
	}
	in, err := file.Inspect(t.Context(), dir)
	if err != nil || in.Quarantined != 1 || in.Temporary != 1 || in.Blocks != 4 || in.Marker.Groups[0].Digest != c.Formats[0].Identity || !in.Marker.Groups[0].Layout.Equal(c.Formats[0].Layout) {
		t.Errorf("%+v, %v", in, err)
	}
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := file.Verify(canceled, dir, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled: %v", err)
	}
}

func TestInspectionRefusesWhatIsNoDirectoryOfBlocks(t *testing.T) {
	dir := t.TempDir()
	for _, d := range []string{dir, filepath.Join(dir, "absent")} {
		_, err1 := file.Inspect(t.Context(), d)
		_, err2 := file.Verify(t.Context(), d, nil)
		_, err3 := file.GC(t.Context(), d, 0, nil)
		for _, err := range []error{err1, err2, err3, file.List(t.Context(), d, func(file.Entry) error { return nil })} {
			if !errors.Is(err, errdefs.ErrNotFound) {
				t.Errorf("%s: %v", d, err)
			}
		}
	}
	if _, err := file.Inspect(t.Context(), ""); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("no name: %v", err)
	}
}

func TestListYieldsInOrderAndStops(t *testing.T) {
	c := config(t)
	tr := open(t, c)
	all := keys(0, 20)
	put(t, tr, c.Formats[0], all...)
	var names []string
	err := file.List(t.Context(), c.Dirs[0], func(e file.Entry) error {
		names = append(names, e.Key.String())
		if e.Bytes != c.Formats[0].Layout.ImageBytes() || e.Shards != c.Formats[0].Layout.Shards() || time.Since(e.Modified) > time.Hour {
			t.Errorf("%+v", e)
		}
		return nil
	})
	if err != nil || len(names) != 20 || !slices.IsSorted(names) {
		t.Errorf("listed %v, %v", names, err)
	}
	stop := errors.New("stop")
	n := 0
	err = file.List(t.Context(), c.Dirs[0], func(file.Entry) error { n++; return stop })
	if !errors.Is(err, stop) || n != 1 {
		t.Errorf("%d calls, %v", n, err)
	}
}

// gc may run on a directory that a tier has open. It removes the coldest blocks, and the tier
// reports misses and continues.
func TestGCOfADirectoryInUse(t *testing.T) {
	c := config(t)
	tr := open(t, c)
	all := keys(0, 10)
	put(t, tr, c.Formats[0], all...)
	setTimes(t, c.Dirs, all)
	n := c.Formats[0].Layout.ImageBytes()
	got, err := file.GC(t.Context(), c.Dirs[0], 4*n+1, nil)
	if err != nil || got != (file.Collected{Before: 10 * n, After: 4 * n, Removed: 6}) {
		t.Errorf("%+v, %v", got, err)
	}
	for i, there := range present(t, tr, all) {
		if there != (i >= 6) {
			t.Errorf("block %d: there %v", i, there)
		}
	}
	put(t, tr, c.Formats[0], all...)
	if _, err := tr.GC(t.Context(), 1<<40); err != nil { // counts the files again
		t.Error(err)
	}
	if st := tr.Stats(); st.Blocks != 10 || st.Errors != 0 {
		t.Errorf("%+v", st)
	}
}

// A hit renews the time of a file, but only if that time is older than TouchAfter.
func TestHitsRenewHotnessSometimes(t *testing.T) {
	c := config(t)
	plan := fault.New(1)
	clock := clockwork.NewFakeClockAt(time.Now())
	c.FS, c.Clock, c.TouchAfter = faultfs.New(dirfs.OS(), plan, clock), clock, time.Minute
	tr := open(t, c)
	all := keys(0, 3)
	put(t, tr, c.Formats[0], all...)
	setTimes(t, c.Dirs, all)
	for range 5 {
		if err := get(t, tr, c.Formats[0], all[0]); err != nil {
			t.Fatal(err)
		}
	}
	if n := plan.Seen("settime"); n != 1 {
		t.Errorf("times written %d times for 5 hits, want 1", n)
	}
	clock.Advance(2 * time.Minute)
	if n, err := tr.Retain(t.Context(), all[:1]); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	tr.Release(all[:1])
	if n := plan.Seen("settime"); n != 2 {
		t.Errorf("times written %d times, want 2", n)
	}
	if _, err := tr.GC(t.Context(), c.Formats[0].Layout.ImageBytes()); err != nil {
		t.Fatal(err)
	}
	if got := present(t, tr, all); !slices.Equal(got, []bool{true, false, false}) {
		t.Errorf("blocks left: %v, want the block that was hit", got)
	}
	plan.Add(fault.Every("settime", 1).Fail(nil))
	clock.Advance(time.Hour)
	if err := get(t, tr, c.Formats[0], all[0]); err != nil {
		t.Errorf("a hit whose times cannot be written: %v", err)
	}
	if st := tr.Stats(); st.Errors != 1 {
		t.Errorf("%d errors counted, want 1", st.Errors)
	}
}

func TestQuarantineIsBounded(t *testing.T) {
	for _, most := range []int{-1, 2} {
		c := config(t)
		clock := clockwork.NewFakeClockAt(time.Now())
		c.QuarantineMax, c.Clock = most, clock
		tr := open(t, c)
		all := keys(0, 5)
		put(t, tr, c.Formats[0], all...)
		for _, k := range all {
			flip(t, path(c.Dirs[0], k), 5000)
			if err := get(t, tr, c.Formats[0], k); !errors.Is(err, errdefs.ErrCorrupt) {
				t.Errorf("get: %v", err)
			}
			if s := state(t, tr, k); s != tier.Absent {
				t.Errorf("lookup answers %s", s)
			}
			clock.Advance(time.Second)
		}
		left := files(t, c.Dirs[0])
		if len(left) != max(most, 0) || most > 0 && filepath.Base(left[1])[17:] != all[4].String() {
			t.Errorf("at most %d kept: %q", most, left)
		}
	}
}

// A corrupt file is removed if it cannot be moved to quarantine.
func TestCorruptBlockIsRemovedWhereQuarantineFails(t *testing.T) {
	c := config(t)
	plan := fault.New(1)
	c.FS = faultfs.New(dirfs.OS(), plan, nil)
	tr, key := open(t, c), tiertest.Key(1)
	put(t, tr, c.Formats[0], key)
	flip(t, path(c.Dirs[0], key), 0)
	plan.Add(fault.Every("rename", 1).Fail(nil))
	if err := get(t, tr, c.Formats[0], key); !errors.Is(err, errdefs.ErrCorrupt) {
		t.Errorf("get: %v", err)
	}
	if left := files(t, c.Dirs[0]); len(left) > 0 {
		t.Errorf("files left: %q", left)
	}
	if st := tr.Stats(); st.Errors != 1 || st.Quarantined != 0 || st.Blocks != 0 {
		t.Errorf("%+v", st)
	}
}
