package log_test

import (
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/zeebo/xxh3"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/tier"
	"github.com/kvlane/kvlane/tier/log"
	"github.com/kvlane/kvlane/tier/tiertest"
)

// tree returns the contents of all files below a directory.
func tree(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := make(map[string]string)
	err := filepath.WalkDir(dir, func(p string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(p)
		all[p] = string(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// newer changes the header at off, which has the given length, to an unknown newer version.
func newer(t *testing.T, name string, off, bytes int64) {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	h := b[off : off+bytes]
	binary.LittleEndian.PutUint32(h[8:], 9)
	binary.LittleEndian.PutUint64(h[bytes-8:], xxh3.Hash(h[:bytes-8]))
	if err := os.WriteFile(name, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

// A marker or a checkpoint of a newer version is refused, and no file is changed.
func TestNewerVersionIsRefused(t *testing.T) {
	for what, make := range map[string]func(t *testing.T, dir string){
		"checkpoint": func(t *testing.T, dir string) { newer(t, filepath.Join(dir, "index"), 0, 4096) },
		"marker": func(t *testing.T, dir string) {
			name := filepath.Join(dir, "kvlane.json")
			b, err := os.ReadFile(name)
			if err == nil {
				err = os.WriteFile(name, []byte(strings.NewReplacer(`"version": 1`, `"version": 9`, `"sum"`, `"its"`).Replace(string(b))), 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(what, func(t *testing.T) {
			c := config(t)
			tr := open(t, c)
			put(t, tr, c.Formats[0], tiertest.Key(1))
			closeTier(t, tr)
			make(t, c.Dir)
			before := tree(t, c.Dir)
			if _, err := log.Open(t.Context(), c); !errors.Is(err, errdefs.ErrMismatch) {
				t.Errorf("open: %v", err)
			}
			for name, text := range tree(t, c.Dir) {
				if before[name] != text {
					t.Errorf("%s was changed", name)
				}
			}
		})
	}
}

// A single group of a newer version prevented the log from being opened. It must stay unchanged, be
// counted and be reported, and the rest of the log must work.
func TestDefectNewerGroupKeepsTheLogClosed(t *testing.T) {
	c := config(t)
	f := c.Formats[0]
	tr := open(t, c)
	put(t, tr, f, keys(0, 3)...)
	closeTier(t, tr)
	tr = open(t, c)
	put(t, tr, f, keys(3, 5)...)
	closeTier(t, tr)
	name := segmentFiles(t, c.Dir)[0]
	const page, group = 4096, 24 << 10
	newer(t, name, page+group, page) // the group of block 1
	if err := os.Remove(filepath.Join(c.Dir, "index")); err != nil {
		t.Fatal(err)
	}
	before := tree(t, c.Dir)[name]
	for range 2 {
		tr = open(t, c)
		if st := tr.Stats(); st.Errors == 0 {
			t.Error("no error was counted")
		}
		for i, key := range keys(0, 5) {
			if err := get(t, tr, f, key); (err == nil) == (i == 1) {
				t.Errorf("block %d: %v", i, err)
			}
		}
		put(t, tr, f, tiertest.Key(5))
		closeTier(t, tr)
		r, err := log.Verify(t.Context(), c.Dir, nil)
		if err != nil || len(r.Findings) != 1 || !strings.Contains(r.Findings[0].Detail, "version 9") {
			t.Errorf("%+v, %v", r.Findings, err)
		}
	}
	tr = open(t, c)
	if _, err := tr.GC(t.Context(), 0); err != nil {
		t.Error(err)
	}
	closeTier(t, tr)
	if tree(t, c.Dir)[name] != before {
		t.Error("the group of a newer version was changed")
	}
}

// Foreign files are reported and not changed, and the log works.
func TestForeignFilesStay(t *testing.T) {
	c := config(t)
	tr := open(t, c)
	put(t, tr, c.Formats[0], tiertest.Key(1))
	closeTier(t, tr)
	for _, name := range []string{"notes.txt", "seg-0000000000000099", "seg-x"} {
		if err := os.WriteFile(filepath.Join(c.Dir, name), []byte(strings.Repeat("mine", 3000)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	tr = open(t, c)
	if err := get(t, tr, c.Formats[0], tiertest.Key(1)); err != nil {
		t.Error(err)
	}
	put(t, tr, c.Formats[0], tiertest.Key(2))
	if _, err := tr.GC(t.Context(), 0); err != nil {
		t.Error(err)
	}
	closeTier(t, tr)
	for _, name := range []string{"notes.txt", "seg-0000000000000099", "seg-x"} {
		if b, err := os.ReadFile(filepath.Join(c.Dir, name)); err != nil || string(b) != strings.Repeat("mine", 3000) {
			t.Errorf("%s: %d bytes, %v", name, len(b), err)
		}
	}
	r, err := log.Verify(t.Context(), c.Dir, nil)
	if err != nil || len(r.Findings) != 3 {
		t.Errorf("%+v, %v", r.Findings, err)
	}
}

// A truncated segment loses only the missing part. A lost or damaged checkpoint loses no block.
func TestDamagedFilesLoseNoMore(t *testing.T) {
	for what, damage := range map[string]func(t *testing.T, dir string){
		"no checkpoint": func(t *testing.T, dir string) {
			if err := os.Remove(filepath.Join(dir, "index")); err != nil {
				t.Fatal(err)
			}
		},
		"damaged checkpoint": func(t *testing.T, dir string) { flip(t, filepath.Join(dir, "index"), 4100) },
		"short segment": func(t *testing.T, dir string) {
			name := segmentFiles(t, dir)[0]
			info, err := os.Stat(name)
			if err == nil {
				err = os.Truncate(name, info.Size()-4096)
			}
			if err != nil {
				t.Fatal(err)
			}
		},
		"damaged header": func(t *testing.T, dir string) {
			if err := os.Remove(filepath.Join(dir, "index")); err != nil {
				t.Fatal(err)
			}
			flip(t, segmentFiles(t, dir)[0], 4096+200)
		},
	} {
		t.Run(what, func(t *testing.T) {
			c := config(t)
			f := c.Formats[0]
			tr := open(t, c)
			put(t, tr, f, keys(0, 9)...)
			closeTier(t, tr)
			damage(t, c.Dir)
			ro := c
			ro.ReadOnly = true
			closeTier(t, open(t, ro))
			tr = open(t, c)
			there := 0
			for _, key := range keys(0, 9) {
				if err := get(t, tr, f, key); err == nil {
					there++
				} else if !errors.Is(err, errdefs.ErrNotFound) {
					t.Error(err)
				}
			}
			want := 9
			if what == "short segment" || what == "damaged header" {
				want = 8
			}
			if there != want {
				t.Errorf("%d blocks are left, want %d", there, want)
			}
		})
	}
}

// Keys were compared by the xor of their halves, so two keys with the same xor were taken for one.
// A lookup returned the wrong block, and a Put replaced the other block.
func TestDefectKeysWithEqualHalvesAreOne(t *testing.T) {
	c := config(t)
	f := c.Formats[0]
	one, other := tiertest.Key(1), tiertest.Key(1)
	for i := range other {
		other[i] ^= 0x5a // changes both halves equally, so that their xor stays the same
	}
	tr := open(t, c)
	put(t, tr, f, one)
	states := make([]tier.State, 1)
	if err := tr.Lookup(t.Context(), []block.Key{other}, states); err != nil || states[0] != tier.Absent {
		t.Errorf("a block that was never put is %s, %v", states[0], err)
	}
	put(t, tr, f, other)
	for range 2 {
		for _, key := range []block.Key{one, other} {
			if err := get(t, tr, f, key); err != nil {
				t.Errorf("%s: %v", key, err)
			}
		}
		closeTier(t, tr)
		tr = open(t, c) // from the checkpoint
	}
}

// A checkpoint of version 1 contains only half of each key. It is ignored, and the segments are
// read instead.
func TestCheckpointOfVersion1IsIgnored(t *testing.T) {
	c := config(t)
	tr := open(t, c)
	put(t, tr, c.Formats[0], keys(0, 10)...)
	closeTier(t, tr)
	name := filepath.Join(c.Dir, "index")
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	binary.LittleEndian.PutUint32(b[8:], 1)
	binary.LittleEndian.PutUint64(b[4088:], xxh3.Hash(b[:4088]))
	if err := os.WriteFile(name, b, 0o600); err != nil {
		t.Fatal(err)
	}
	if r, err := log.Verify(t.Context(), c.Dir, nil); err != nil || !r.Clean() || r.Blocks != 10 {
		t.Errorf("%+v, %v", r, err)
	}
	tr = open(t, c)
	if s := tr.Stats(); s.Blocks != 10 || s.Failure != nil {
		t.Errorf("%d of 10 blocks, %v", s.Blocks, s.Failure)
	}
}
