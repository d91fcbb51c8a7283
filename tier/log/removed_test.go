package log_test

import (
	"os"
	"strings"
	"testing"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/tier/log"
	"github.com/kvlane/kvlane/tier/tiertest"
)

// Blocks were put into segments whose files had been removed, and were lost when the process ended.
func TestDefectPutIntoARemovedDirectory(t *testing.T) {
	c := config(t)
	f := c.Formats[0]
	tr, err := log.Open(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	put(t, tr, f, tiertest.Key(0))
	if err := os.RemoveAll(c.Dir); err != nil {
		t.Fatal(err)
	}
	for i := range 3 { // the first block was put before
		if err := tr.Put(t.Context(), tiertest.Key(i), image(t, f, tiertest.Key(i))); err == nil || !strings.Contains(err.Error(), "was removed while the log was open") {
			t.Errorf("put block %d: %v", i, err)
		}
	}
	kept := make([]bool, 1)
	if err := tr.Kept(t.Context(), keys(0, 1), kept); err != nil || kept[0] {
		t.Errorf("a block of a removed segment is durable: %v", err)
	}
	if err := tr.Close(t.Context()); err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("close: %v", err)
	}
}

// If single segments are removed, their blocks can be put again.
func TestDefectPutIntoARemovedSegment(t *testing.T) {
	c := config(t)
	f := c.Formats[0]
	tr := open(t, c)
	put(t, tr, f, keys(0, 3)...)
	for _, s := range segmentFiles(t, c.Dir) {
		if err := os.Remove(s); err != nil {
			t.Fatal(err)
		}
	}
	if err := tr.Put(t.Context(), tiertest.Key(0), image(t, f, tiertest.Key(0))); err == nil {
		t.Error("a block was put into a removed segment")
	}
	put(t, tr, f, keys(0, 4)...)
	closeTier(t, tr)
	tr = open(t, c)
	states := make(map[block.Key]error)
	for _, key := range keys(0, 4) {
		if err := get(t, tr, f, key); err != nil {
			states[key] = err
		}
	}
	if len(states) > 0 {
		t.Errorf("blocks are lost: %v", states)
	}
}
