package kept_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/kept"
)

// Opening a FIFO with the name of a profile must fail instead of blocking.
func TestReadRefusesAFIFO(t *testing.T) {
	d := kept.Dir{Path: t.TempDir()}
	if err := unix.Mkfifo(filepath.Join(d.Path, "p.json"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Read("p", 100); !errors.Is(err, errdefs.ErrCorrupt) || !strings.Contains(err.Error(), "p.json") {
		t.Errorf("%v, want ErrCorrupt with the name", err)
	}
	if err := d.Write("p", []byte("x")); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("write: %v, want ErrInvalid", err)
	}
}

// A child of fork() holds a copy of the lock's descriptor. The test makes one with dup.
func TestLockEndsThoughACopyIsOpen(t *testing.T) {
	d := kept.Dir{Path: t.TempDir(), Patience: 1} // 1 ns: does not wait for another process
	child := -1
	defer func() {
		if err := unix.Close(child); err != nil {
			t.Error(err)
		}
	}()
	err := d.Locked(t.Context(), func() (err error) {
		entries, err := os.ReadDir("/proc/self/fd")
		for _, e := range entries {
			if to, _ := os.Readlink("/proc/self/fd/" + e.Name()); child < 0 && strings.HasPrefix(to, d.Path) {
				var fd int
				for _, digit := range e.Name() {
					fd = 10*fd + int(digit-'0')
				}
				child, err = unix.Dup(fd)
			}
		}
		return err
	})
	if err != nil || child < 0 {
		t.Fatalf("copy of descriptor %d, %v", child, err)
	}
	if err := d.Locked(t.Context(), func() error { return nil }); err != nil {
		t.Errorf("locked again: %v", err)
	}
}
