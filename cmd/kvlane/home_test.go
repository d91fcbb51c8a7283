package main

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// withoutAccess runs f as a user without access to the folder.
func withoutAccess(t *testing.T, folder string, f func()) {
	t.Helper()
	const nobody = 65534
	if os.Getuid() != 0 {
		defer func() {
			if err := os.Chmod(folder, 0o700); err != nil {
				t.Error(err)
			}
		}()
		if err := os.Chmod(folder, 0); err != nil {
			t.Fatal(err)
		}
		f()
		return
	}
	runtime.LockOSThread() // the user id for file access belongs to the thread
	defer runtime.UnlockOSThread()
	if _, err := unix.SetfsuidRetUid(nobody); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if _, err := unix.SetfsuidRetUid(0); err != nil {
			t.Error(err)
		}
	}()
	f()
}

// Commands must work for a user without access to the folder in HOME. Every command failed.
func TestHomeThatMayNotBeEntered(t *testing.T) {
	home := filepath.Join(t.TempDir(), "home")
	if err := os.Mkdir(home, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("XDG_CONFIG_HOME", home)
	t.Setenv("XDG_CACHE_HOME", filepath.Join(home, "cache"))
	withoutAccess(t, home, func() {
		mine := usualConfigs()[0]
		if _, err := os.Stat(mine); !errors.Is(err, os.ErrPermission) {
			t.Fatalf("the home can be entered: %v", err)
		}
		if got, err := firstFile([]string{mine, "/dev/null"}); got != "/dev/null" || err != nil {
			t.Errorf("the file is %q, %v", got, err)
		}
		if got := ownDir(); got != "" {
			t.Errorf("advice %q", got)
		}
	})
}
