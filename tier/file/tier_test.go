package file_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/tier"
	"github.com/kvlane/kvlane/tier/file"
	"github.com/kvlane/kvlane/tier/tiertest"
)

func TestConformance(t *testing.T) {
	for name, dirs := range map[string]int{"one directory": 1, "three directories": 3} {
		t.Run(name, func(t *testing.T) { conform(t, tiertest.NewFormat(t), dirs) })
	}
}

func conform(t *testing.T, f block.Format, dirs int) {
	t.Helper()
	configs := make(map[tier.Tier]file.Config) // for Reopen
	tiertest.Run(t, tiertest.Config{
		Format: f,
		Open: func(t *testing.T, capacity int) tier.Tier {
			c := file.Config{Formats: block.Formats{f}, MaxBytes: int64(capacity) * f.Layout.ImageBytes()}
			for range dirs {
				c.Dirs = append(c.Dirs, t.TempDir())
			}
			tr := open(t, c)
			configs[tr] = c
			return tr
		},
		Bounded: true,
		Corrupt: func(t *testing.T, tr tier.Tier, key block.Key) {
			path := find(t, configs[tr].Dirs, key)
			flip(t, path, f.Layout.ShardOff(1))
		},
		Reopen: func(t *testing.T, tr tier.Tier) tier.Tier {
			c := configs[tr]
			if err := tr.Close(context.WithoutCancel(t.Context())); err != nil {
				t.Fatal(err)
			}
			next := open(t, c)
			configs[next] = c
			return next
		},
	})
}

// open opens a tier and closes it when the test ends.
func open(t *testing.T, c file.Config) *file.Tier {
	t.Helper()
	tr, err := file.Open(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := tr.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	return tr
}

// config returns the configuration of a tier of small blocks in one new directory.
func config(t *testing.T) file.Config {
	t.Helper()
	return file.Config{Dirs: []string{t.TempDir()}, Formats: block.Formats{tiertest.NewFormat(t)}}
}

func image(t *testing.T, f block.Format, key block.Key) mem.Extent {
	t.Helper()
	e := tiertest.Buffer(t, f.Layout.ImageBytes())
	tiertest.Seal(t, f, e.Bytes(), key, 0)
	return e
}

func put(t *testing.T, tr *file.Tier, f block.Format, keys ...block.Key) {
	t.Helper()
	for _, key := range keys {
		if err := tr.Put(t.Context(), key, image(t, f, key)); err != nil {
			t.Fatal(err)
		}
	}
}

func get(t *testing.T, tr *file.Tier, f block.Format, key block.Key) error {
	t.Helper()
	dst := tiertest.Buffer(t, f.Layout.ImageBytes())
	if err := tr.Get(t.Context(), key, dst); err != nil {
		return err
	}
	return tiertest.Check(f, dst.Bytes(), key, 0)
}

func state(t *testing.T, tr *file.Tier, key block.Key) tier.State {
	t.Helper()
	states := make([]tier.State, 1)
	if err := tr.Lookup(t.Context(), []block.Key{key}, states); err != nil {
		t.Fatal(err)
	}
	return states[0]
}

func keys(from, to int) []block.Key {
	var k []block.Key
	for i := from; i < to; i++ {
		k = append(k, tiertest.Key(i))
	}
	return k
}

// path returns the path of a block's file in a directory.
func path(dir string, key block.Key) string {
	return filepath.Join(dir, key.String()[:2], key.String())
}

// find returns the file of a block in whichever directory has it.
func find(t *testing.T, dirs []string, key block.Key) string {
	t.Helper()
	for _, d := range dirs {
		if _, err := os.Stat(path(d, key)); err == nil {
			return path(d, key)
		}
	}
	t.Fatalf("no directory has block %s", key)
	return ""
}

// flip flips a bit of a file, in place.
func flip(t *testing.T, path string, off int64) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}()
	b := make([]byte, 1)
	if _, err := f.ReadAt(b, off); err != nil {
		t.Fatal(err)
	}
	b[0] ^= 4
	if _, err := f.WriteAt(b, off); err != nil {
		t.Fatal(err)
	}
}

// files returns the relative paths of all files below dir, except those of the directory itself.
func files(t *testing.T, dir string) []string {
	t.Helper()
	var found []string
	err := filepath.WalkDir(dir, func(p string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(dir, p)
		switch filepath.Base(rel) {
		case "kvlane.json", "kvlane.lock", "kvlane.removed", "lock":
		default:
			found = append(found, rel)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}
