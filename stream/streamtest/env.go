package streamtest

import (
	"context"
	"testing"
	"time"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream"
)

// Env describes one kind of stream on one machine. Run uses a new Env for each test.
type Env struct {
	// Open opens a stream for depth unresolved batches. Zero: its default. The suite closes it.
	Open func(tb testing.TB, depth int) stream.Stream
	// A and B are the memories of all copies: between them in both directions, and within each.
	A, B Memory
	// Unordered is set if the stream is unordered and copies only between A and B.
	Unordered bool
	// Path is the path that batches with bytes must report. With PathNone the stream may choose.
	Path stream.Path
	// Sums holds the paths on which the stream must fill mem.Paged.Sums. Other paths may fill them.
	Sums map[stream.Path]bool
	// Unreachable is a region that the stream must refuse. It is nil if the stream can access all
	// memory.
	Unreachable *mem.Region
	// Plan makes work below the stream fail and stall. It is nil if that is not possible. It counts
	// all operations that move bytes under the name Work, including those of Memory.Read and Write.
	Plan *fault.Plan
	Work string
}

// Memory is a kind of memory, with functions to allocate it and to access it without the stream
// under test.
type Memory struct {
	Name string
	// Alloc returns a region that is valid until the test ends.
	Alloc func(tb testing.TB, bytes int64) *mem.Region
	// Write and Read return after the bytes have been moved.
	Write func(tb testing.TB, to mem.Extent, b []byte)
	Read  func(tb testing.TB, from mem.Extent) []byte
}

// Pinned returns page-locked memory of dev.
func Pinned(dev device.Device) Memory {
	return Memory{
		Name:  "pinned",
		Alloc: func(tb testing.TB, bytes int64) *mem.Region { tb.Helper(); return pinned(tb, dev, bytes) },
		Write: func(tb testing.TB, to mem.Extent, b []byte) { tb.Helper(); copy(to.Bytes(), b) },
		Read: func(tb testing.TB, from mem.Extent) []byte {
			tb.Helper()
			return append([]byte(nil), from.Bytes()...)
		},
	}
}

// DeviceMemory returns dev's memory. The suite accesses it with a queue and pinned staging memory.
func DeviceMemory(dev device.Device) Memory {
	return Memory{
		Name: "device",
		Alloc: func(tb testing.TB, bytes int64) *mem.Region {
			tb.Helper()
			r, err := dev.Alloc(bytes, device.AllocOptions{})
			if err != nil {
				tb.Fatal(err)
			}
			freeAtEnd(tb, dev, r)
			return r
		},
		Write: func(tb testing.TB, to mem.Extent, b []byte) {
			tb.Helper()
			move(tb, dev, int64(len(b)), func(q device.Queue, staging mem.Extent) error {
				copy(staging.Bytes(), b)
				return q.Copy(to, staging)
			})
		},
		Read: func(tb testing.TB, from mem.Extent) (b []byte) {
			tb.Helper()
			staging := move(tb, dev, from.Len, func(q device.Queue, staging mem.Extent) error { return q.Copy(staging, from) })
			return staging
		},
	}
}

func pinned(tb testing.TB, dev device.Device, bytes int64) *mem.Region {
	tb.Helper()
	r, err := dev.AllocHost(bytes)
	if err != nil {
		tb.Fatal(err)
	}
	freeAtEnd(tb, dev, r)
	return r
}

func freeAtEnd(tb testing.TB, dev device.Device, r *mem.Region) {
	tb.Helper()
	tb.Cleanup(func() {
		if err := dev.Free(r); err != nil {
			tb.Error(err)
		}
	})
}

// move calls enqueue with a new queue and n bytes of staging memory, and returns the final bytes of
// that memory.
func move(tb testing.TB, dev device.Device, n int64, enqueue func(device.Queue, mem.Extent) error) []byte {
	tb.Helper()
	ctx := deadline(tb)
	fatal := func(err error) {
		if err != nil {
			tb.Helper()
			tb.Fatal(err)
		}
	}
	staging, err := dev.AllocHost(n)
	fatal(err)
	q, err := dev.OpenQueue(device.QueueOptions{})
	fatal(err)
	fatal(enqueue(q, mem.All(staging)))
	e, err := q.Record()
	fatal(err)
	fatal(e.Wait(ctx))
	e.Close()
	fatal(q.Close(ctx))
	b := append([]byte(nil), staging.Bytes()...)
	fatal(dev.Free(staging))
	return b
}

// patience is the limit for waits that must succeed. It is long because machines are shared.
const patience = 30 * time.Second

// pause is the time for which tests wait for an event that must not happen.
const pause = 3 * time.Millisecond

// deadline returns a context for waits that must succeed. It is valid in cleanups too.
func deadline(tb testing.TB) context.Context {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(tb.Context()), patience)
	tb.Cleanup(cancel)
	return ctx
}
