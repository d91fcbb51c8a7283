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

// Of two processes that make the same directory at once, the second opens what the first has made meanwhile.
func TestDefectDirectoryMadeByAnotherMeanwhile(t *testing.T) {
	ffs := faultfs.New(dirfs.OS(), nil, nil)
	c := file.Config{Dirs: []string{t.TempDir()}, Formats: block.Formats{tiertest.NewFormat(t)}}
	var once sync.Once
	ffs.Forbid(func(op, path string) error {
		if op == "readdir" { // the second has found no marker, and is about to look whether there is anything else
			once.Do(func() { open(t, c) })
		}
		return nil
	})
	second := c
	second.FS = ffs
	open(t, second)
}
