package doctor

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/kvlane/kvlane/errdefs"
)

// The probes make real system calls. Any of the three answers is accepted, but nothing may stay
// open.
func TestLocalProbesAnswer(t *testing.T) {
	m := Local(nil, nil, nil)
	if err := m.IOUring(); err != nil && !errors.Is(err, errdefs.ErrNotSupported) {
		t.Errorf("io_uring: %v, want yes or a definite no", err)
	}
	soft, hard, err := m.OpenFiles()
	if err != nil || soft == 0 || soft > hard {
		t.Errorf("open files: %d of %d, %v", soft, hard, err)
	}
	soft, hard, err = m.MemoryLock()
	if err != nil || soft > hard {
		t.Errorf("locked memory: %d of %d, %v", soft, hard, err)
	}
	dir := t.TempDir()
	total, free, err := m.StatFS(dir)
	if err != nil || total <= 0 || free < 0 || free > total {
		t.Errorf("file system: %d free of %d, %v", free, total, err)
	}
	if err := m.DirectIO(dir); err != nil {
		t.Logf("O_DIRECT: %v", err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("the probe left %v behind (%v)", left, err)
	}
	if s, err := m.text("proc/sys/kernel/osrelease"); err != nil || s == "" {
		t.Errorf("kernel release %q, %v", s, err)
	}
}

func TestLocalProbesOfMissingDirectory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "none")
	m := Local(nil, nil, nil)
	if _, _, err := m.StatFS(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("StatFS: %v", err)
	}
	if err := m.DirectIO(dir); err == nil || errors.Is(err, errdefs.ErrNotSupported) {
		t.Errorf("DirectIO: %v, want an inconclusive answer", err)
	}
}
