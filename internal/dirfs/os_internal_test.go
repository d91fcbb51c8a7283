package dirfs

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestRenameByLink tests the replacement of RENAME_NOREPLACE on file systems that do not support
// it.
func TestRenameByLink(t *testing.T) {
	root := t.TempDir()
	path := func(name string) string { return filepath.Join(root, name) }
	if err := errors.Join(os.WriteFile(path("f"), []byte("f"), 0o600), os.WriteFile(path("g"), []byte("g"), 0o600),
		os.Mkdir(path("d"), 0o700), os.Mkdir(path("e"), 0o700)); err != nil {
		t.Fatal(err)
	}
	d, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Close(d); err != nil {
			t.Error(err)
		}
	}()
	for _, r := range []struct {
		from, to string
		want     error
	}{
		{"f", "g", unix.EEXIST},
		{"d", "e", unix.EEXIST},
		{"none", "x", unix.ENOENT},
		{"f", "h", nil},
		{"d", "i", nil},
	} {
		if err := renameByLink(d, r.from, d, r.to); !errors.Is(err, r.want) {
			t.Errorf("%s to %s: %v, want %v", r.from, r.to, err, r.want)
		}
	}
	all, err := os.ReadDir(root)
	if err != nil || len(all) != 4 || all[0].Name() != "e" || all[1].Name() != "g" || all[2].Name() != "h" || all[3].Name() != "i" {
		t.Errorf("the directory contains %v, %v", all, err)
	}
	if b, err := os.ReadFile(path("h")); err != nil || string(b) != "f" {
		t.Errorf("%q, %v", b, err)
	}
}

// A write that returned 0 bytes was repeated forever.
func TestDefectWriteOfNothingIsRepeatedWithoutEnd(t *testing.T) {
	parts := [][]byte{make([]byte, 3), nil, make([]byte, 5)}
	for _, answers := range [][]int{{0}, {4, 0}, {3, 0}, {3, 2, 3}, {8}} {
		calls, want := 0, 0
		for _, n := range answers {
			want += n
		}
		n, err := writeAll(parts, 0, func([][]byte, int64) (int, error) {
			if calls++; calls > len(answers) {
				return 0, errors.New("it was called once more")
			}
			return answers[calls-1], nil
		})
		if n != want || (want == 8) != (err == nil) || err != nil && !errors.Is(err, io.ErrShortWrite) {
			t.Errorf("%v: %d bytes, %v", answers, n, err)
		}
	}
}

// A folder that an operation uses is not closed. Otherwise another file could get its descriptor,
// and the operation would use that file.
func TestFolderInUseIsNotClosed(t *testing.T) {
	root := t.TempDir()
	if err := os.Mkdir(filepath.Join(root, "ab"), 0o700); err != nil {
		t.Fatal(err)
	}
	opened, err := OS().OpenDir(root)
	if err != nil {
		t.Fatal(err)
	}
	d := opened.(*osDir) //nolint:forcetypeassert,errcheck // the operating system's directories have this type
	f, err := d.acquire("ab")
	if err != nil {
		t.Fatal(err)
	}
	if !f.kept {
		t.Fatal("the folder is not kept")
	}
	keeper.closeIdle()
	var st unix.Stat_t
	if err := unix.Fstat(f.fd, &st); err != nil {
		t.Errorf("the folder in use: %v", err)
	}
	d.release(f)
	if !keeper.closeIdle() {
		t.Error("the unused folder is not closed")
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}
