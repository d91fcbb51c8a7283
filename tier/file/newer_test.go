package file_test

import (
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/zeebo/xxh3"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/tier/file"
	"github.com/kvlane/kvlane/tier/tiertest"
)

// renew rewrites the image at path with the next format version and more bytes at its end, as a
// newer release on another host would. It returns the new content.
func renew(t *testing.T, path string, more int) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	binary.LittleEndian.PutUint32(b[8:], block.FormatVersion+1)
	end := binary.LittleEndian.Uint32(b[12:]) - 8
	binary.LittleEndian.PutUint64(b[end:], xxh3.Hash(b[:end]))
	b = append(b, make([]byte, more)...)
	write(t, path, string(b))
	return b
}

// An intact image of a newer format version was moved aside as damaged, and later removed from the
// quarantine.
func TestDefectNewerImageIsSetAside(t *testing.T) {
	for name, more := range map[string]int{"same length": 0, "another length": 4096} {
		t.Run(name, func(t *testing.T) {
			c := config(t)
			tr, key := open(t, c), tiertest.Key(1)
			put(t, tr, c.Formats[0], key)
			p := path(c.Dirs[0], key)
			want := renew(t, p, more)
			if err := get(t, tr, c.Formats[0], key); !errors.Is(err, errdefs.ErrNotFound) || errors.Is(err, errdefs.ErrCorrupt) {
				t.Errorf("get: %v", err)
			}
			if err := tr.Put(t.Context(), key, image(t, c.Formats[0], key)); !errors.Is(err, errdefs.ErrExists) || errors.Is(err, errdefs.ErrMismatch) {
				t.Errorf("put: %v", err)
			}
			if st := tr.Stats(); st.Newer != 2 || st.Misses != 1 || st.Corrupt != 0 || st.Quarantined != 0 || st.Replaced != 0 {
				t.Errorf("%+v", st)
			}
			if r, err := file.Verify(t.Context(), c.Dirs[0], nil); err != nil || len(r.Findings) != 1 || r.Findings[0].Problem != file.Newer {
				t.Errorf("verify: %+v, %v", r, err)
			}
			if r, err := file.Repair(t.Context(), c.Dirs[0], nil); err != nil || r.SetAside != 0 || len(r.Unrepaired) != 1 {
				t.Errorf("repair: %+v, %v", r, err)
			}
			if r, err := file.GC(t.Context(), c.Dirs[0], 0, nil); err != nil || r.Removed != 0 || !errors.Is(r.Left, block.ErrVersion) {
				t.Errorf("gc: %+v, %v", r, err)
			}
			if got, err := os.ReadFile(p); err != nil || string(got) != string(want) {
				t.Errorf("the file was changed: %v", err)
			}
		})
	}
}

// Repair does not move an image of another format version from a wrong folder, because it cannot
// interpret the key.
func TestRepairLeavesANewerImageWhereItIs(t *testing.T) {
	c := config(t)
	tr, key := open(t, c), tiertest.Key(1)
	put(t, tr, c.Formats[0], key)
	elsewhere := filepath.Join(c.Dirs[0], "ff", key.String())
	renew(t, path(c.Dirs[0], key), 0)
	if err := errors.Join(os.MkdirAll(filepath.Dir(elsewhere), 0o700), os.Rename(path(c.Dirs[0], key), elsewhere)); err != nil {
		t.Fatal(err)
	}
	r, err := file.Repair(t.Context(), c.Dirs[0], nil)
	if err != nil || r.SetAside != 0 || r.Moved != 0 || len(r.Unrepaired) != 1 {
		t.Errorf("%+v, %v", r, err)
	}
	if _, err := os.Stat(elsewhere); err != nil {
		t.Error(err)
	}
}
