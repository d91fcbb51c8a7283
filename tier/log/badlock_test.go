package log_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/internal/dirfs"
	"github.com/kvlane/kvlane/tier/internal/blockdir"
	"github.com/kvlane/kvlane/tier/log"
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
			lock := filepath.Join(c.Dir, "kvlane.lock")
			if err := errors.Join(os.Remove(lock), make(lock)); err != nil {
				t.Fatal(err)
			}
			if _, err := log.Open(t.Context(), c); !errors.Is(err, dirfs.ErrIrregular) || !strings.Contains(err.Error(), "verify --repair") {
				t.Errorf("open: %v, want ErrIrregular with the remedy", err)
			}
			v, err := log.Verify(t.Context(), c.Dir, nil)
			if err != nil || !slices.ContainsFunc(v.Findings, func(f blockdir.Finding) bool {
				return f.Path == lock && f.Problem == blockdir.Damaged && strings.Contains(f.Detail, kind)
			}) {
				t.Errorf("verify: %+v, %v", v.Findings, err)
			}
			if r, err := log.Repair(t.Context(), c.Dir, nil); err != nil || len(r.Unrepaired) != 0 {
				t.Errorf("repair: %+v, %v", r.Unrepaired, err)
			}
			if err := get(t, open(t, c), c.Formats[0], all[0]); err != nil {
				t.Errorf("a block after the repair: %v", err)
			}
		})
	}
}
