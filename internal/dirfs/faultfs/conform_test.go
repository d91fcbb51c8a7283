package faultfs_test

import (
	"testing"

	"github.com/kvlane/kvlane/internal/dirfs"
	"github.com/kvlane/kvlane/internal/dirfs/dirfstest"
	"github.com/kvlane/kvlane/internal/dirfs/faultfs"
	"github.com/kvlane/kvlane/internal/fault"
)

func TestConformance(t *testing.T) {
	for name, open := range map[string]func(t *testing.T) (dirfs.FS, string){
		"no faults": func(t *testing.T) (dirfs.FS, string) {
			return faultfs.New(dirfs.OS(), fault.New(1), nil), t.TempDir()
		},
		"disk": func(*testing.T) (dirfs.FS, string) { return faultfs.NewDisk(nil).Process(), "/" },
		"disk after a power failure": func(t *testing.T) (dirfs.FS, string) {
			disk := faultfs.NewDisk(nil)
			mkdir(t, disk.Process(), "dir")
			disk.PowerFail(faultfs.KeepAll())
			return disk.Process(), "dir"
		},
	} {
		t.Run(name, func(t *testing.T) { dirfstest.Run(t, open) })
	}
}

// mkdir makes a directory in the root.
func mkdir(t *testing.T, fsys dirfs.FS, name string) {
	t.Helper()
	d, err := fsys.OpenDir("/")
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if err := d.Mkdir(name); err != nil {
		t.Fatal(err)
	}
}
