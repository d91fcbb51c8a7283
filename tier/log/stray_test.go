package log_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kvlane/kvlane/tier/internal/blockdir"
	"github.com/kvlane/kvlane/tier/log"
	"github.com/kvlane/kvlane/tier/tiertest"
)

// boundedLog creates a log of 20 blocks with a bound of 16 segments, and closes it.
func boundedLog(t *testing.T) log.Config {
	t.Helper()
	c := config(t)
	c.MaxBytes = 16 * c.SegmentBytes
	tr := open(t, c)
	put(t, tr, c.Formats[0], keys(0, 20)...)
	closeTier(t, tr)
	return c
}

// stillUsable opens the log and checks that its blocks are found, that another block can be put,
// and that a notice names the file.
func stillUsable(t *testing.T, c log.Config, name string) {
	t.Helper()
	tr := open(t, c)
	if n, err := tr.Retain(t.Context(), keys(0, 20)); n != 20 || err != nil {
		t.Errorf("%d of 20 blocks are left: %v", n, err)
	}
	tr.Release(keys(0, 20))
	// Without space a Put waits.
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	for _, key := range keys(20, 30) {
		if err := tr.Put(ctx, key, image(t, c.Formats[0], key)); err != nil {
			t.Error(err)
		}
	}
	if notes := strings.Join(tr.Notes(), "\n"); !strings.Contains(notes, filepath.Base(name)) {
		t.Errorf("no note names %s: %q", filepath.Base(name), notes)
	}
	if s := tr.Stats(); s.Evictions != 0 {
		t.Errorf("%d evictions", s.Evictions)
	}
	if _, err := os.Stat(name); err != nil {
		t.Error(err)
	}
	closeTier(t, tr)
}

// A foreign file counted toward the bound although the log can never empty it. All blocks were
// evicted, and no other could be put.
func TestDefectForeignFileCountsTowardTheBound(t *testing.T) {
	for what, make := range map[string]func(t *testing.T, c log.Config, name string){
		"foreign": func(t *testing.T, c log.Config, name string) {
			if err := os.WriteFile(name, []byte(strings.Repeat("no segment ", int(c.MaxBytes/11))), 0o600); err != nil {
				t.Error(err)
			}
		},
		"sparse": func(t *testing.T, c log.Config, name string) {
			err := os.WriteFile(name, []byte("no segment"), 0o600)
			if err = errors.Join(err, os.Truncate(name, c.MaxBytes)); err != nil {
				t.Error(err)
			}
		},
		"newer": func(t *testing.T, c log.Config, name string) {
			b, err := os.ReadFile(segmentFiles(t, c.Dir)[0])
			if err = errors.Join(err, os.WriteFile(name, b, 0o600)); err != nil {
				t.Error(err)
			}
			newer(t, name, 0, 4096)
			if err := os.Truncate(name, c.MaxBytes); err != nil {
				t.Error(err)
			}
		},
		"another log": func(t *testing.T, c log.Config, name string) {
			b, err := os.ReadFile(segmentFiles(t, boundedLog(t).Dir)[0])
			if err = errors.Join(err, os.WriteFile(name, b, 0o600), os.Truncate(name, c.MaxBytes)); err != nil {
				t.Error(err)
			}
		},
	} {
		t.Run(what, func(t *testing.T) {
			c := boundedLog(t)
			name := filepath.Join(c.Dir, "seg-0000000000000077")
			make(t, c, name)
			stillUsable(t, c, name)
		})
	}
}

// A foreign file with the highest possible segment number prevented the log from creating further
// segments.
func TestDefectNumberOfAForeignFileIsBelieved(t *testing.T) {
	for what, make := range map[string]func(name string) error{
		"foreign": func(name string) error { return os.WriteFile(name, []byte("no segment"), 0o600) },
		"folder":  func(name string) error { return os.Mkdir(name, 0o700) },
	} {
		t.Run(what, func(t *testing.T) {
			c := boundedLog(t)
			name := filepath.Join(c.Dir, "seg-00000000ffffffff")
			if err := make(name); err != nil {
				t.Fatal(err)
			}
			stillUsable(t, c, name)
			for _, s := range segmentFiles(t, c.Dir) {
				if s > filepath.Join(c.Dir, "seg-0000000000000010") && s != name {
					t.Errorf("%s was made", s)
				}
			}
		})
	}
}

// The number of an unreadable segment counts: the next segment must have a higher one.
func TestUnreadableSegmentIsOlderThanNewOnes(t *testing.T) {
	c := boundedLog(t)
	folder := filepath.Join(c.Dir, "seg-0000000000000077")
	if err := os.Mkdir(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	tr := open(t, c)
	put(t, tr, c.Formats[0], tiertest.Key(30))
	closeTier(t, tr)
	if _, err := os.Stat(filepath.Join(c.Dir, "seg-0000000000000078")); err != nil {
		t.Error(err)
	}
}

// Every operation that opens the directory read a sparse foreign file of 1 TiB from end to end.
func TestDefectSparseForeignFileIsReadWhole(t *testing.T) {
	c := boundedLog(t)
	name := filepath.Join(c.Dir, "seg-0000000000000077")
	err := os.WriteFile(name, []byte("no segment"), 0o600)
	if err = errors.Join(err, os.Truncate(name, 1<<40)); err != nil {
		t.Skip("no file of a TiB can be made here: ", err)
	}
	stillUsable(t, c, name)
	r, err := log.Verify(t.Context(), c.Dir, nil)
	if err != nil || len(r.Findings) != 1 || r.Findings[0].Problem != blockdir.Foreign || r.Blocks != 30 {
		t.Errorf("%d blocks, %+v, %v", r.Blocks, r.Findings, err)
	}
}

// A foreign file replaces a segment that the checkpoint lists. Eviction must not remove it.
func TestDefectForeignFileInTheCheckpointIsTakenForASegment(t *testing.T) {
	c := boundedLog(t)
	name := segmentFiles(t, c.Dir)[0]
	text := strings.Repeat("no segment ", 10000)
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	tr := open(t, c)
	if _, err := tr.GC(t.Context(), 0); err != nil {
		t.Error(err)
	}
	closeTier(t, tr)
	if b, err := os.ReadFile(name); err != nil || string(b) != text {
		t.Errorf("the foreign file was changed: %v", err)
	}
}

// A folder with the name of a checkpoint prevented the log from being opened or closed.
func TestDefectFolderInThePlaceOfTheCheckpoint(t *testing.T) {
	for _, name := range []string{"index", "index.tmp"} {
		t.Run(name, func(t *testing.T) {
			c := boundedLog(t)
			at := filepath.Join(c.Dir, name)
			err := os.RemoveAll(at)
			if err = errors.Join(err, os.Mkdir(at, 0o700), os.WriteFile(filepath.Join(at, "mine"), nil, 0o600)); err != nil {
				t.Fatal(err)
			}
			if r, err := log.Verify(t.Context(), c.Dir, nil); err != nil || len(r.Findings) != 1 || r.Findings[0].Problem != blockdir.Foreign {
				t.Errorf("%+v, %v", r.Findings, err)
			}
			tr := open(t, c)
			if n, err := tr.Retain(t.Context(), keys(0, 20)); n != 20 || err != nil {
				t.Errorf("%d of 20 blocks are left: %v", n, err)
			}
			tr.Release(keys(0, 20))
			closeTier(t, tr)
			if in, err := os.Lstat(filepath.Join(c.Dir, "index")); err != nil || !in.Mode().IsRegular() {
				t.Errorf("no checkpoint was written: %v", err)
			}
			if kept, _ := filepath.Glob(filepath.Join(c.Dir, "quarantine", "*-"+name, "mine")); len(kept) != 1 {
				t.Errorf("the folder is not in quarantine: %v", kept)
			}
		})
	}
}

// For a segment of another version, Verify advised to run it as another user.
func TestDefectNewerSegmentIsUnjudged(t *testing.T) {
	c := boundedLog(t)
	newer(t, segmentFiles(t, c.Dir)[0], 4096, 4096)
	if err := os.Remove(filepath.Join(c.Dir, "index")); err != nil {
		t.Fatal(err)
	}
	r, err := log.Verify(t.Context(), c.Dir, nil)
	if err != nil || len(r.Findings) == 0 || r.Findings[0].Problem != blockdir.Newer {
		t.Errorf("%+v, %v", r.Findings, err)
	}
}

// A segment whose creator was killed before its first write has only zeros. The log did not
// recognize it if the file system reported more than 64 MiB of them as data, as ext4 does for
// allocated space in the page cache. The file then stayed, and counted as foreign.
func TestDefectSegmentWithoutAWriteIsForeign(t *testing.T) {
	c := boundedLog(t)
	name := filepath.Join(c.Dir, "seg-0000000000000077")
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	zeros := make([]byte, 1<<20)
	for range 80 {
		if _, err := f.Write(zeros); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	closeTier(t, open(t, c))
	if _, err := os.Stat(name); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the segment without a write is left: %v", err)
	}
}
