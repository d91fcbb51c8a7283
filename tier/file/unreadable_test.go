package file_test

import (
	"syscall"
	"testing"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/internal/dirfs"
	"github.com/kvlane/kvlane/internal/dirfs/faultfs"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/tier/file"
	"github.com/kvlane/kvlane/tier/tiertest"
)

// A Put finds a durable block that it temporarily cannot read, and also fails to write the block.
// The durable block must stay.
func TestDefectUnreadableOnceLosesADurableBlock(t *testing.T) {
	for name, fails := range map[string][]fault.Rule{
		"read": {fault.Nth("read", 0).Fail(syscall.EIO)},
		"open": {fault.Nth("open", 0).Fail(syscall.EIO)},
	} {
		t.Run(name, func(t *testing.T) {
			format := tiertest.NewFormat(t)
			dir, key := t.TempDir(), tiertest.Key(1)
			ffs := faultfs.New(dirfs.OS(), nil, nil)
			c := file.Config{Dirs: []string{dir}, Formats: block.Formats{format}, FS: ffs}
			image := tiertest.Buffer(t, format.Layout.ImageBytes())
			tiertest.Seal(t, format, image.Bytes(), key, 0)
			first, second := open(t, c), open(t, c)
			if err := first.Put(t.Context(), key, image); err != nil {
				t.Fatal(err)
			}
			plan := fault.New(1, fails...)
			plan.Add(fault.After("write", 0).Fail(syscall.ENOSPC))
			ffs.Use(plan)
			err := second.Put(t.Context(), key, image)
			ffs.Use(nil)
			t.Logf("the second Put: %v", err)
			if err := first.Get(t.Context(), key, tiertest.Buffer(t, format.Layout.ImageBytes())); err != nil {
				t.Errorf("the first Put reported the block as durable: %v", err)
			}
		})
	}
}

// If the block was replaced and the new name cannot be synced, the block must not be lost.
func TestDefectUnreadableOnceIsLostWithWhatReplacesIt(t *testing.T) {
	ffs := faultfs.New(dirfs.OS(), nil, nil)
	c := file.Config{Dirs: []string{t.TempDir()}, Formats: block.Formats{tiertest.NewFormat(t)}, FS: ffs, Fsync: file.FsyncFile}
	key := tiertest.Key(1)
	first, second := open(t, c), open(t, c)
	put(t, first, c.Formats[0], key)
	// The first sync is that of the temporary file, the second that of the block's folder.
	ffs.Use(fault.New(1, fault.Nth("read", 0).Fail(syscall.EIO), fault.Nth("sync", 1).Fail(syscall.EIO)))
	err := second.Put(t.Context(), key, image(t, c.Formats[0], key))
	ffs.Use(nil)
	if err == nil {
		t.Error("the second Put returned no error")
	}
	if err := get(t, first, c.Formats[0], key); err != nil {
		t.Errorf("the first Put reported the block as durable: %v", err)
	}
}
