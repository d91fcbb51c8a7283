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

// Env is one kind of stream on one machine. Run asks for a fresh one for every test.
type Env struct {
	// Open opens a stream with places for depth unresolved batches; zero: its default. The suite closes it.
	Open func(tb testing.TB, depth int) stream.Stream
	// A and B are the memories that batches copy between, both ways and within.
	A, B Memory
	// Unordered: the stream is one, and copies between A and B only, not within.
	Unordered bool
	// Path is what every batch that moves bytes must report; PathNone where the stream chooses.
	Path stream.Path
	// Sums holds the paths by which the stream must fill mem.Paged.Sums; by others it may.
	Sums map[stream.Path]bool
	// Unreachable is a region that the stream must refuse; nil where it reaches all memory.
	Unreachable *mem.Region
	// Plan makes work below the stream fail and stall; nil where nothing can. It counts under the name Work whatever
	// moves bytes, that of Memory.Read and Write too.
	Plan *fault.Plan
	Work string
}

// Memory is a sort of memory: how to get it, and how to see it other than through the stream under test.
type Memory struct {
	Name string
	// Alloc returns a region that lasts until the test ends.
	Alloc func(tb testing.TB, bytes int64) *mem.Region
	// Write and Read wait until the bytes have moved.
	Write func(tb testing.TB, to mem.Extent, b []byte)
	Read  func(tb testing.TB, from mem.Extent) []byte
}

// Pinned is page-locked memory of dev.
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

// DeviceMemory is dev's own memory, seen through a queue and pinned staging.
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

// move runs enqueue on a queue of its own with n bytes of staging memory, and returns what that holds in the end.
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

// patience is how long the suite waits for what must happen. It is long since machines are shared; it costs nothing.
const patience = 30 * time.Second

// pause is how long the suite gives something that must not happen.
const pause = 3 * time.Millisecond

// deadline returns a context for waits that must succeed, also in cleanups.
func deadline(tb testing.TB) context.Context {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(tb.Context()), patience)
	tb.Cleanup(cancel)
	return ctx
}
