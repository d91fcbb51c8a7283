package faultfs_test

import (
	"errors"
	"os"
	"testing"
	"time"

	"github.com/kvlane/kvlane/internal/dirfs"
	"github.com/kvlane/kvlane/internal/dirfs/faultfs"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// Every operation is counted under its name, and fails as the plan demands.
func TestEveryOperationFails(t *testing.T) {
	plan := fault.New(1)
	faulty := faultfs.New(dirfs.OS(), plan, nil)
	path := t.TempDir()
	fs, err := faulty.OpenDir(path)
	if err != nil {
		t.Fatal(err)
	}
	defer fs.Close()
	const name = "f"
	f, err := fs.Open(name, os.O_RDWR|os.O_CREATE)
	if err != nil {
		t.Fatal(err)
	}
	for op, do := range map[string]func() error{
		"open":    func() error { _, err := fs.Open(name, os.O_RDONLY); return err },
		"stat":    func() error { _, err := fs.Stat(name); return err },
		"opendir": func() error { _, err := faulty.OpenDir(path); return err },
		"readdir": func() error { _, err := fs.ReadDir("."); return err },
		"mkdir":   func() error { return fs.Mkdir(name + ".dir") },
		"rename":  func() error { return fs.Rename(name, name+"2", true) },
		"remove":  func() error { return fs.Remove(name) },
		"settime": func() error { return fs.SetTime(name, time.Now()) },
		"read":    func() error { _, err := f.ReadAt(make([]byte, 1), 0); return err },
		"write":   func() error { _, err := f.WriteAt(make([]byte, 1), 0); return err },
		"fstat":   func() error { _, err := f.Stat(); return err },
		"sync":    f.Sync,
		"lock":    func() error { return f.Lock() },
	} {
		plan.Add(fault.Nth(op, int(plan.Seen(op))))
		if err := do(); !errors.Is(err, fault.ErrInjected) {
			t.Errorf("%s: %v", op, err)
		}
	}
	if info, err := fs.Stat(name); err != nil || info.Bytes != 0 {
		t.Errorf("the file after all of that: %+v, %v", info, err)
	}
	plan.Add(fault.Nth("close", 0))
	if err := f.Close(); !errors.Is(err, fault.ErrInjected) {
		t.Errorf("close: %v", err)
	}
	plan.Add(fault.Nth("mkdir", int(plan.Seen("mkdir"))).Crash())
	if err := errors.Join(fs.Mkdir(name + ".dir")); !errors.Is(err, faultfs.ErrCrashed) {
		t.Errorf("crash: %v", err)
	}
	if _, err := fs.Stat(name); !errors.Is(err, faultfs.ErrCrashed) {
		t.Errorf("after a crash: %v", err)
	}
}
