package kvlane

import (
	"context"
	"io/fs"

	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream"
	"github.com/kvlane/kvlane/transfer"
)

// HoldClose makes Close of e call f first.
func HoldClose(e *Engine, f func(context.Context) error) { e.closers.Add("held", f) }

// StoreStreams returns the functions that open the streams of e's store.
func StoreStreams(e *Engine) (loads, dumps func() (stream.Stream, error)) {
	return e.openLoads, e.openDumps
}

// TransferBy returns a Transfer of e's caches over the given engine. It supports only
// RegisterLocal.
func TransferBy(e *Engine, engine *transfer.Engine) *Transfer {
	return &Transfer{e: e, engine: engine, local: make(map[*mem.Region]bool)}
}

// RegisterLocal registers c with NICs as Connect does.
func RegisterLocal(t *Transfer, c *Cache) error { return t.registerLocal(c) }

// Regions returns the memory of c.
func Regions(c *Cache) []*mem.Region { return c.regions }

// CheckMemory checks a cache's size against the memory limits in files.
func CheckMemory(files fs.FS, bytes int64) error { return checkMemory(files, bytes) }
