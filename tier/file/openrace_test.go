package file_test

import (
	"sync"
	"testing"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/internal/dirfs"
	"github.com/kvlane/kvlane/internal/dirfs/faultfs"
	"github.com/kvlane/kvlane/tier/file"
	"github.com/kvlane/kvlane/tier/tiertest"
)

// If two processes create a directory at the same time, the second opens the one that the first has
// created.
func TestDefectDirectoryMadeByAnotherMeanwhile(t *testing.T) {
	ffs := faultfs.New(dirfs.OS(), nil, nil)
	c := file.Config{Dirs: []string{t.TempDir()}, Formats: block.Formats{tiertest.NewFormat(t)}}
	var once sync.Once
	ffs.Forbid(func(op, path string) error {
		// The second process has found no marker. It is about to check whether the directory is
		// empty.
		if op == "readdir" {
			once.Do(func() { open(t, c) })
		}
		return nil
	})
	second := c
	second.FS = ffs
	open(t, second)
}
