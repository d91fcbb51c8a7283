package file_test

import (
	"fmt"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jonboulle/clockwork"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/internal/dirfs"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/tier/file"
	"github.com/kvlane/kvlane/tier/tiertest"
)

// countingFS counts opened directories.
type countingFS struct {
	dirfs.FS
	opened atomic.Int64
}

func (c *countingFS) OpenDir(path string) (dirfs.Dir, error) {
	c.opened.Add(1)
	return c.FS.OpenDir(path)
}

// The cost of a folder that shares a bound does not grow with those that the process has open.
func TestOpenFoldersAreNotRead(t *testing.T) {
	const folders = 40
	parent, fsys, open := t.TempDir(), &countingFS{FS: dirfs.OS()}, new(file.OpenFolders)
	f, clock := tiertest.NewFormat(t), clockwork.NewFakeClockAt(time.Now())
	var tiers []*file.Tier
	config := func(i int) file.Config {
		return file.Config{
			Dirs: []string{filepath.Join(parent, fmt.Sprint(i))}, SharedBound: true, OpenFolders: open,
			Formats: block.Formats{f}, MaxBytes: 200 * f.Layout.ImageBytes(), FS: fsys, Clock: clock,
		}
	}
	for i := range folders {
		tr, err := file.Open(t.Context(), config(i))
		if err != nil {
			t.Fatal(err)
		}
		tiers = append(tiers, tr)
		put(t, tr, f, keys(0, 2)...)
	}
	if n := fsys.opened.Load(); n > folders*folders/2 {
		t.Errorf("%d directories were opened for %d tiers", n, folders)
	}
	// The sizes are those of the open tiers. That of a closed one is read from its record.
	if err := tiers[0].Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	want := int64(2*(folders-1)) * f.Layout.ImageBytes()
	for end := time.Now().Add(testkit.Patience()); ; time.Sleep(10 * time.Millisecond) {
		clock.Advance(time.Minute) // tiers read the sizes again
		if got := tiers[1].Stats().OthersBytes; got == want {
			break
		} else if time.Now().After(end) {
			t.Fatalf("the other folders have %d bytes, want %d", got, want)
		}
	}
	for _, tr := range tiers[1:] {
		if err := tr.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
}
