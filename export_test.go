package kvlane

import (
	"context"
	"io/fs"

	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream"
	"github.com/kvlane/kvlane/transfer"
)

// HoldClose has e closed by f first.
func HoldClose(e *Engine, f func(context.Context) error) { e.closers.Add("held", f) }

// StoreStreams returns what opens the streams of e's store.
func StoreStreams(e *Engine) (loads, dumps func() (stream.Stream, error)) {
	return e.openLoads, e.openDumps
}

// TransferBy returns a Transfer of e's caches by an engine of the caller's, for RegisterLocal alone.
func TransferBy(e *Engine, engine *transfer.Engine) *Transfer {
	return &Transfer{e: e, engine: engine, local: make(map[*mem.Region]bool)}
}

// RegisterLocal has NICs reach c as Connect does.
func RegisterLocal(t *Transfer, c *Cache) error { return t.registerLocal(c) }

// Regions returns where c lies.
func Regions(c *Cache) []*mem.Region { return c.regions }

// CheckMemory is the check of a cache's size, with the files of a machine.
func CheckMemory(files fs.FS, bytes int64) error { return checkMemory(files, bytes) }
