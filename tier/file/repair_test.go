package file_test

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/tier/file"
	"github.com/kvlane/kvlane/tier/tiertest"
)

func TestRepairSetsAsideWhatIsWrong(t *testing.T) {
	c := config(t)
	all := keys(0, 40)
	tr := open(t, c)
	put(t, tr, c.Formats[0], all...)
	if err := tr.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	dir := c.Dirs[0]
	for i := range 20 { // more corrupt blocks than a tier keeps in quarantine
		flip(t, path(dir, all[i]), c.Formats[0].Layout.ShardOff(0))
	}
	replace(t, path(dir, all[20]), mkfifo)
	// A sound block in a wrong folder, and a damaged one.
	elsewhere := filepath.Join(dir, "ff")
	if err := errors.Join(
		os.MkdirAll(elsewhere, 0o700),
		os.Rename(path(dir, all[21]), filepath.Join(elsewhere, all[21].String())),
		os.Rename(path(dir, all[22]), filepath.Join(elsewhere, all[22].String())),
		os.MkdirAll(filepath.Join(dir, "tmp", "dead"), 0o700),
	); err != nil {
		t.Fatal(err)
	}
	flip(t, filepath.Join(elsewhere, all[22].String()), c.Formats[0].Layout.ShardOff(0))
	write(t, filepath.Join(dir, "tmp", "dead", "1"), "x")
	write(t, filepath.Join(dir, "notes.txt"), "mine")
	r, err := file.Repair(t.Context(), dir, nil)
	if err != nil || r.SetAside != 22 || r.Moved != 1 || r.SweptFiles != 1 || r.MarkerMade {
		t.Errorf("%+v, %v", r, err)
	}
	if image := c.Formats[0].Layout.ImageBytes(); r.Blocks != 18 || r.Bytes != 18*image || r.Sums[c.Formats[0].Algo()] != 18 {
		t.Errorf("the repair counts %d blocks, %d bytes, %v; want 18 blocks", r.Blocks, r.Bytes, r.Sums)
	}
	if len(r.Unrepaired) != 1 || r.Unrepaired[0].Problem != file.Foreign || r.Unrepaired[0].Path != filepath.Join(dir, "notes.txt") {
		t.Errorf("findings that are not repaired: %+v", r.Unrepaired)
	}
	if v, err := file.Verify(t.Context(), dir, nil); err != nil || v.Blocks != 18 || v.Quarantined != 22 {
		t.Errorf("%+v, %v", v, err)
	}
	tr = open(t, c)
	if err := get(t, tr, c.Formats[0], all[21]); err != nil {
		t.Errorf("the block that lay elsewhere: %v", err)
	}
}

func TestRepairMakesALostMarkerAnew(t *testing.T) {
	for name, lose := range map[string]func(path string) error{
		"lost":    os.Remove,
		"damaged": func(p string) error { return os.WriteFile(p, []byte("{"), 0o600) },
		"a FIFO":  func(p string) error { return errors.Join(os.Remove(p), mkfifo(p)) },
	} {
		t.Run(name, func(t *testing.T) {
			c := config(t)
			all := keys(0, 5)
			tr := open(t, c)
			put(t, tr, c.Formats[0], all...)
			if err := tr.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
			flip(t, path(c.Dirs[0], all[0]), 40) // in the header, so that its identity does not count
			marker := filepath.Join(c.Dirs[0], "kvlane.json")
			if err := lose(marker); err != nil {
				t.Fatal(err)
			}
			if _, err := file.Open(t.Context(), c); err == nil {
				t.Fatal("Open without a marker succeeded")
			}
			r, err := file.Repair(t.Context(), c.Dirs[0], nil)
			if err != nil || !r.MarkerMade || r.SetAside != 1 || len(r.Unrepaired) != 0 {
				t.Errorf("%+v, %v", r, err)
			}
			var m struct{ Digest string }
			if b, err := os.ReadFile(marker); err != nil || json.Unmarshal(b, &m) != nil {
				t.Errorf("the restored marker: %s, %v", b, err)
			}
			tr = open(t, c)
			for _, key := range all[1:] {
				if err := get(t, tr, c.Formats[0], key); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// If the blocks have two identities, Repair does not guess the identity of the directory.
func TestRepairDoesNotGuessTheIdentityOfBlocks(t *testing.T) {
	c, other := config(t), config(t)
	other.Formats[0].Identity = block.Digest{9}
	for i, c := range []file.Config{c, other} {
		tr := open(t, c)
		put(t, tr, c.Formats[0], tiertest.Key(i))
		if err := tr.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	key := tiertest.Key(1)
	to := path(c.Dirs[0], key)
	if err := errors.Join(os.MkdirAll(filepath.Dir(to), 0o700), os.Rename(path(other.Dirs[0], key), to),
		os.Remove(filepath.Join(c.Dirs[0], "kvlane.json"))); err != nil {
		t.Fatal(err)
	}
	r, err := file.Repair(t.Context(), c.Dirs[0], nil)
	if err != nil || r.MarkerMade || r.SetAside != 0 || len(r.Unrepaired) == 0 {
		t.Errorf("%+v, %v", r, err)
	}
	if _, err := file.Repair(t.Context(), t.TempDir(), nil); !errors.Is(err, errdefs.ErrNotFound) {
		t.Errorf("an empty directory: %v", err)
	}
}

// Two files with the same key are two findings, and each file is repaired by itself.
func TestDefectFindingsOfOneKeyShareAPlace(t *testing.T) {
	c := config(t)
	key := tiertest.Key(0)
	tr := open(t, c)
	put(t, tr, c.Formats[0], key)
	if err := tr.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	own := path(c.Dirs[0], key)
	elsewhere := filepath.Join(c.Dirs[0], "ff", key.String())
	if err := os.MkdirAll(filepath.Dir(elsewhere), 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, own, own)
	write(t, elsewhere, elsewhere)
	r, err := file.Repair(t.Context(), c.Dirs[0], nil)
	if err != nil || r.SetAside != 2 || len(r.Findings) != 2 {
		t.Fatalf("%+v, %v", r, err)
	}
	for _, f := range r.Findings {
		if b, err := os.ReadFile(f.MovedTo); err != nil || string(b) != f.Path {
			t.Errorf("%+v: the folder has %q, %v", f, b, err)
		}
	}
}
