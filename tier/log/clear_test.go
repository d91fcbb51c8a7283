package log_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/tier/internal/blockdir"
	"github.com/kvlane/kvlane/tier/log"
	"github.com/kvlane/kvlane/tier/tiertest"
)

// Clear removes quarantined and foreign files on request. Blocks and segments stay.
func TestClearRemovesWhatIsAskedFor(t *testing.T) {
	c := config(t)
	f := c.Formats[0]
	tr := open(t, c)
	for i := range 3 {
		if err := tr.Put(t.Context(), tiertest.Key(i), image(t, f, tiertest.Key(i))); err != nil {
			t.Fatal(err)
		}
	}
	closeTier(t, tr)
	damage(t, c.Dir, f, tiertest.Key(1))
	r, err := log.Repair(t.Context(), c.Dir, nil)
	if err != nil || r.SetAside != 1 || r.Blocks != 2 || len(r.Findings) == 0 {
		t.Fatalf("%+v, %v", r, err)
	}
	aside := ""
	for _, found := range r.Findings {
		if found.Key == tiertest.Key(1) {
			aside = found.MovedTo
		}
	}
	if _, err := os.Stat(aside); err != nil || !strings.HasSuffix(aside, tiertest.Key(1).String()) {
		t.Fatalf("the segment was moved to %q, %v", aside, err)
	}
	notes := filepath.Join(c.Dir, "notes.txt")
	segment := segmentFiles(t, c.Dir)[0]
	bytes, err := os.ReadFile(segment)
	other := filepath.Join(c.Dir, "seg-0000000000000077") // a segment of another log
	if err = errors.Join(err, os.WriteFile(notes, []byte("mine"), 0o600), os.WriteFile(other, bytes, 0o600)); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{segment, "index", "kvlane.json", "no-such"} {
		if got, err := log.Clear(t.Context(), c.Dir, log.Unwanted{Quarantine: true, Names: []string{name}}); !errors.Is(err, errdefs.ErrInvalid) || len(got.Removed) > 0 {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	if got, err := log.Clear(t.Context(), c.Dir, log.Unwanted{Quarantine: true}); err != nil || len(got.Removed) != 1 || got.Removed[0] != aside {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err := log.Clear(t.Context(), c.Dir, log.Unwanted{Foreign: true}); err != nil || len(got.Removed) != 1 || got.Removed[0] != notes || got.Bytes != 4 {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := os.Stat(other); err != nil {
		t.Errorf("the segment of another log: %v", err)
	}
	if err := os.Remove(other); err != nil {
		t.Errorf("the segment of another log: %v", err)
	}
	if v, err := log.Verify(t.Context(), c.Dir, nil); err != nil || !v.Clean() || v.Blocks != 2 || v.Quarantined != 0 {
		t.Errorf("%+v, %v", v, err)
	}
	if _, err := log.Clear(t.Context(), t.TempDir(), log.Unwanted{}); !errors.Is(err, errdefs.ErrNotFound) {
		t.Errorf("no directory of blocks: %v", err)
	}
}

// closed returns the configuration of a log with one block, after closing it.
func closed(t *testing.T) log.Config {
	t.Helper()
	c := config(t)
	tr := open(t, c)
	put(t, tr, c.Formats[0], tiertest.Key(0))
	closeTier(t, tr)
	return c
}

// Verify and Clear report a foreign segment, which Clear does not remove.
func TestDefectSegmentOfAnotherLogIsLeftInSilence(t *testing.T) {
	c, another := closed(t), closed(t)
	b, err := os.ReadFile(segmentFiles(t, another.Dir)[0])
	other := filepath.Join(c.Dir, "seg-0000000000000077")
	if err = errors.Join(err, os.WriteFile(other, b, 0o600)); err != nil {
		t.Fatal(err)
	}
	if r, err := log.Verify(t.Context(), c.Dir, nil); err != nil || len(r.Findings) != 1 || r.Findings[0].Path != other || !r.Findings[0].ByHand {
		t.Errorf("%+v, %v", r.Findings, err)
	}
	for _, u := range []log.Unwanted{{Foreign: true}, {Names: []string{other}}} {
		got, err := log.Clear(t.Context(), c.Dir, u)
		if err != nil || len(got.Removed) != 0 || len(got.Left) != 1 || got.Left[0].Path != other || !strings.HasSuffix(got.Left[0].Detail, "by hand") {
			t.Errorf("%+v: %+v, %v", u, got, err)
		}
		if _, err := os.Stat(other); err != nil {
			t.Error(err)
		}
	}
}

// A file with the name of the quarantine folder counts as one foreign file, as in the file tier.
func TestDefectForeignQuarantineStopsClear(t *testing.T) {
	c := closed(t)
	at := filepath.Join(c.Dir, "quarantine")
	if err := os.Symlink(t.TempDir(), at); err != nil {
		t.Fatal(err)
	}
	if r, err := log.Verify(t.Context(), c.Dir, nil); err != nil || len(r.Findings) != 1 {
		t.Errorf("%+v, %v", r.Findings, err)
	}
	if got, err := log.Clear(t.Context(), c.Dir, log.Unwanted{Foreign: true}); err != nil || len(got.Removed) != 1 || got.Removed[0] != at {
		t.Errorf("%+v, %v", got, err)
	}
}

// A process that dies while it writes the marker leaves a temporary file, which Repair removes.
func TestDefectMarkerOfADeadProcessIsForeign(t *testing.T) {
	c := closed(t)
	if err := os.WriteFile(filepath.Join(c.Dir, "kvlane.json.tmp.0123456789abcdef"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	r, err := log.Repair(t.Context(), c.Dir, nil)
	if err != nil || len(r.Findings) != 1 || r.Findings[0].Problem != blockdir.Leftover || r.SweptFiles != 1 || len(r.Unrepaired) != 0 {
		t.Errorf("%+v, %v", r, err)
	}
}

// Clear removed a segment that had been renamed or moved to quarantine as a foreign file, with its
// blocks.
func TestDefectClearRemovesARenamedSegment(t *testing.T) {
	for _, aside := range []string{"seg-0000000000000001.bak", "quarantine/seg-0000000000000001", "quarantine/0000000000000001-copy"} {
		t.Run(aside, func(t *testing.T) {
			c := boundedLog(t)
			segment, at := segmentFiles(t, c.Dir)[0], filepath.Join(c.Dir, aside)
			junk := filepath.Join(c.Dir, "junk")
			if err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o700), os.Rename(segment, at), os.WriteFile(junk, make([]byte, 1<<20), 0o600)); err != nil {
				t.Fatal(err)
			}
			flip(t, at, 8) // damages the first group
			for _, u := range []log.Unwanted{{Foreign: true, Quarantine: true}, {Names: []string{at}}} {
				got, err := log.Clear(t.Context(), c.Dir, u)
				if err != nil || len(got.Left) != 1 || got.Left[0].Path != at {
					t.Errorf("%+v, %v", got, err)
				}
			}
			if _, err := os.Stat(junk); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("a file without blocks stays: %v", err)
			}
			if err := os.Rename(at, segment); err != nil {
				t.Fatal(err)
			}
			tr := open(t, c)
			if n, err := tr.Retain(t.Context(), keys(0, 5)); n != 5 || err != nil {
				t.Errorf("%d of 5 blocks are left: %v", n, err)
			}
			tr.Release(keys(0, 5))
		})
	}
}
