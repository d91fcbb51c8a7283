package copy_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream"
	streamcopy "github.com/kvlane/kvlane/stream/copy"
	"github.com/kvlane/kvlane/stream/streamtest"
)

// nullDevice is a simulated device whose queues do nothing, so that a benchmark measures the stream
// alone.
type nullDevice struct {
	device.Device
	done device.Event
}

func (d nullDevice) OpenQueue(device.QueueOptions) (device.Queue, error) {
	return nullQueue{done: d.done}, nil
}

type nullQueue struct {
	device.Launcher
	done device.Event
}

func (q nullQueue) HasKernel(string) bool   { return true }
func (q nullQueue) Wait(device.Event) error { return nil }

func (q nullQueue) Copy(mem.Extent, mem.Extent) error          { return nil }
func (q nullQueue) CopyBatch([]mem.Extent, []mem.Extent) error { return nil }
func (q nullQueue) Launch(*device.Kernel) error                { return nil }
func (q nullQueue) Record() (device.Event, error)              { return q.done, nil }
func (q nullQueue) Close(context.Context) error                { return nil }

type nullEvent struct{}

func (nullEvent) Done() (bool, error)        { return true, nil }
func (nullEvent) Wait(context.Context) error { return nil }
func (nullEvent) Close()                     {}

// BenchmarkSubmit measures the cost of a batch in the stream, on a device that does nothing.
// ns/block and allocs/block are for each copy of the batch.
func BenchmarkSubmit(b *testing.B) {
	dev := openSim(b, sim.Options{})
	dst, src := pinned(b, dev, 32<<20), deviceMemory(b, dev, 32<<20)
	batches := map[string]*mem.Batch{
		"list":  streamtest.Strided(dst, src, 10_000, 2048),
		"paged": benchPaged(dst, src, 64, 512, 1<<10),
		"pages": benchPaged(dst, src, 1, 10_000, 2048),
		"one":   streamtest.Strided(dst, src, 1, 2048),
	}
	for _, path := range []stream.Path{stream.PathNone, stream.PathCopyEngine, stream.PathKernel, stream.PathStaged} {
		for _, name := range []string{"list", "paged", "pages", "one"} {
			batch := batches[name]
			b.Run(fmt.Sprintf("%s/%s", pathName(path), name), func(b *testing.B) {
				s := open(b, nullDevice{dev, nullEvent{}}, streamcopy.Options{Path: path})
				b.ReportAllocs()
				for b.Loop() {
					ticket, err := s.Submit(b.Context(), batch)
					if err != nil {
						b.Fatal(err)
					}
					if err := ticket.Wait(b.Context()); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(batch.Pieces()), "ns/block")
				if err := s.Close(b.Context()); err != nil {
					b.Fatal(err)
				}
			})
		}
	}
}

// benchPaged returns a batch of pages of the given planes, each page of bytes bytes. Pages and
// slots are in different orders.
func benchPaged(slots, pages *mem.Region, planes, pairs int, bytes int64) *mem.Batch {
	g := mem.PageGroup{Slots: mem.Slots{Region: slots, Stride: int64(planes) * bytes}}
	for i := range int64(planes) {
		g.Planes = append(g.Planes, mem.Plane{Region: pages, Base: i * bytes * int64(pairs), Stride: bytes, Bytes: bytes, SlotOff: i * bytes})
	}
	for i := range uint32(pairs) {
		g.Pairs = append(g.Pairs, mem.PageSlot{Page: i * 7 % uint32(pairs), Slot: i})
	}
	return &mem.Batch{Paged: &mem.Paged{Dir: mem.ToSlots, Groups: []mem.PageGroup{g}}}
}
