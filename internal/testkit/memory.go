package testkit

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
)

// MemoryDir returns a directory in memory if the system supports it, so that tests do not depend on
// the load of disks. It is removed after the test.
func MemoryDir(tb testing.TB) string {
	tb.Helper()
	dir := fmt.Sprintf("/dev/shm/kvlane-test-%016x", rand.Uint64())
	err := os.Mkdir(dir, 0o700)
	if err != nil {
		dir = filepath.Join(tb.TempDir(), "files")
		err = os.Mkdir(dir, 0o700)
	}
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := os.Remove(dir); err != nil {
			tb.Errorf("something was left behind: %v", err)
		}
	})
	return dir
}
