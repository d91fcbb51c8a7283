package file_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/internal/dirfs"
	"github.com/kvlane/kvlane/tier/file"
)

// Verify reported no error for a directory that no process could open, because its lock file was
// not a regular file.
func TestLockFileThatIsNoFile(t *testing.T) {
	for kind, make := range map[string]func(path string) error{
		"directory": func(p string) error { return os.Mkdir(p, 0o700) },
		"link":      func(p string) error { return os.Symlink("/etc/passwd", p) },
		"FIFO":      func(p string) error { return unix.Mkfifo(p, 0o600) },
	} {
		t.Run(kind, func(t *testing.T) {
			c := config(t)
			all := keys(0, 3)
			tr := open(t, c)
			put(t, tr, c.Formats[0], all...)
			if err := tr.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
			lock := filepath.Join(c.Dirs[0], "kvlane.lock")
			if err := errors.Join(os.Remove(lock), make(lock)); err != nil {
				t.Fatal(err)
			}
			if _, err := file.Open(t.Context(), c); !errors.Is(err, dirfs.ErrIrregular) || !strings.Contains(err.Error(), "verify --repair") {
				t.Errorf("open: %v, want ErrIrregular with the remedy", err)
			}
			v, err := file.Verify(t.Context(), c.Dirs[0], nil)
			if err != nil || len(v.Findings) != 1 || v.Findings[0].Path != lock || v.Findings[0].Problem != file.Damaged || !strings.Contains(v.Findings[0].Detail, kind) {
				t.Errorf("verify: %+v, %v", v.Findings, err)
			}
			if r, err := file.Repair(t.Context(), c.Dirs[0], nil); err != nil || len(r.Unrepaired) != 0 {
				t.Errorf("repair: %+v, %v", r.Unrepaired, err)
			}
			if err := get(t, open(t, c), c.Formats[0], all[0]); err != nil {
				t.Errorf("a block after the repair: %v", err)
			}
		})
	}
}

// If the lock file is a folder with files in it, Repair keeps them.
func TestLockFileThatIsAFullFolder(t *testing.T) {
	c := config(t)
	if err := open(t, c).Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	lock := filepath.Join(c.Dirs[0], "kvlane.lock")
	if err := errors.Join(os.Remove(lock), os.Mkdir(lock, 0o700)); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(lock, "mine"), "x")
	r, err := file.Repair(t.Context(), c.Dirs[0], nil)
	if err != nil || len(r.Unrepaired) != 1 || r.Unrepaired[0].Problem != file.Foreign || !r.Unrepaired[0].ByHand {
		t.Fatalf("repair: %+v, %v", r.Unrepaired, err)
	}
	if b, err := os.ReadFile(filepath.Join(r.Unrepaired[0].Path, "mine")); err != nil || string(b) != "x" {
		t.Errorf("the file in it: %q, %v", b, err)
	}
	open(t, c)
}
