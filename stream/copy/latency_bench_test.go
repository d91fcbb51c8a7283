package copy_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/kvlane/kvlane/device/cuda/cudatest"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/internal/sys/hostmem"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream"
	streamcopy "github.com/kvlane/kvlane/stream/copy"
	"github.com/kvlane/kvlane/stream/copy/move"
	"github.com/kvlane/kvlane/stream/streamtest"
)

var latencyPaths = []stream.Path{stream.PathNone, stream.PathCopyEngine, stream.PathKernel, stream.PathResident}

const latencyBlock = 4 << 10

// BenchmarkLatencySim and BenchmarkLatencyCUDA measure blocks of 4 KiB from Submit to the end of Wait, and the median of
// it, which is not moved by the few that were interrupted.
func BenchmarkLatencySim(b *testing.B) { benchLatency(b, openSim(b, sim.Options{})) }

func BenchmarkLatencyCUDA(b *testing.B) { benchLatency(b, cudatest.Open(b)) }

func benchLatency(b *testing.B, dev device.Device) {
	b.Helper()
	const block, blocks = latencyBlock, 64
	host := streamtest.Pinned(dev).Alloc(b, 2*block*blocks)
	gpu := streamtest.DeviceMemory(dev).Alloc(b, 2*block*blocks)
	for _, path := range latencyPaths {
		for _, n := range []int{1, blocks} {
			batch := apart(host, gpu, n, block)
			for _, dir := range []string{"d2h", "h2d"} {
				b.Run(fmt.Sprintf("%s/%s/%d", pathName(path), dir, n), func(b *testing.B) {
					latency(b, dev, streamcopy.Options{Path: path}, batch)
				})
				for _, o := range residentVariants(path, n) {
					b.Run(fmt.Sprintf("%s/%s/%d/workers %d", path, dir, n, o.Workers), func(b *testing.B) {
						latency(b, dev, streamcopy.Options{Path: path, Resident: o}, batch)
					})
				}
				batch.Dst, batch.Src = batch.Src, batch.Dst
			}
		}
	}
}

// residentVariants are the ways to share n blocks evenly among workers.
func residentVariants(path stream.Path, n int) (all []streamcopy.ResidentOptions) {
	if path != stream.PathResident {
		return nil
	}
	for workers := 1; workers <= min(n, move.MaxResidentWorkers); workers *= 2 {
		all = append(all, streamcopy.ResidentOptions{Workers: workers, WorkerBytes: int64(n) * latencyBlock / int64(workers)})
	}
	return all
}

// apart returns n copies of blocks that are aligned to their size and no neighbours.
func apart(dst, src *mem.Region, n int, block int64) *mem.Batch {
	var b mem.Batch
	for i := range int64(n) {
		b.Dst = append(b.Dst, mem.Extent{Region: dst, Off: 2 * i * block, Len: block})
		b.Src = append(b.Src, mem.Extent{Region: src, Off: 2 * i * block, Len: block})
	}
	return &b
}

func latency(b *testing.B, dev device.Device, o streamcopy.Options, batch *mem.Batch) {
	b.Helper()
	s := open(b, dev, o)
	defer closeStream(b, s)
	quantiles(b, func() {
		ticket, err := s.Submit(b.Context(), batch)
		if err == nil {
			err = ticket.Wait(b.Context())
		}
		if err != nil {
			b.Fatal(err)
		}
	})
}

// quantiles calls once again and again, and reports what it takes.
func quantiles(b *testing.B, once func()) {
	b.Helper()
	took := make([]time.Duration, 0, 1<<16)
	for b.Loop() {
		begun := time.Now()
		once()
		if len(took) < cap(took) {
			took = append(took, time.Since(begun))
		}
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Nanoseconds())/1e3, "p50-us")
	b.ReportMetric(float64(took[len(took)*99/100].Nanoseconds())/1e3, "p99-us")
}

// BenchmarkLatencyHost measures the host's part of a resident copy: the kernel is a goroutine that spins, and answers at
// once or after what a GPU takes. "protocol" is no more than writing an entry and waiting for its word; what a stream takes
// beyond that is the stream's.
func BenchmarkLatencyHost(b *testing.B) {
	for _, takes := range []time.Duration{0, 4 * time.Microsecond} {
		b.Run(takes.String(), func(b *testing.B) { latencyHost(b, takes) })
	}
}

func latencyHost(b *testing.B, takes time.Duration) {
	b.Helper()
	dev := &spinDevice{Device: openSim(b, sim.Options{}), takes: takes}
	dst, src := pinned(b, dev.Device, 1<<20), deviceMemory(b, dev.Device, 1<<20)
	b.Run("protocol", func(b *testing.B) {
		control, err := dev.AllocHost(device.ResidentControlBytes + 64*device.ResidentEntryBytes)
		if err != nil {
			b.Fatal(err)
		}
		q, err := dev.OpenQueue(device.QueueOptions{})
		if err != nil {
			b.Fatal(err)
		}
		ring := control.Bytes()[device.ResidentControlBytes:]
		hostmem.StoreUint64(control.Bytes()[device.ResidentNext:], 1)
		hostmem.StoreUint64(control.Bytes()[device.ResidentRing:], uint64(control.Dev())+device.ResidentControlBytes)
		hostmem.StoreUint64(control.Bytes()[device.ResidentDepth:], 64)
		k := device.Kernel{Name: device.KernelResident, NArgs: 6, Args: [device.MaxKernelArgs]uint64{uint64(control.Dev()), 0, 1, uint64(time.Hour), uint64(time.Hour), 1}}
		l, ok := q.(device.Launcher)
		if !ok {
			b.Fatalf("a %T runs no kernels", q)
		}
		if err := l.Launch(&k); err != nil {
			b.Fatal(err)
		}
		e := device.ResidentWords{1: device.ResidentCopy, 14: 1}
		put := func() {
			e[0]++
			at := ring[e[0]%64*device.ResidentEntryBytes:]
			hostmem.StoreUint64(at[device.ResidentLast:], e.Put(at))
		}
		quantiles(b, func() {
			put()
			for hostmem.LoadUint64(control.Bytes()[device.ResidentDone:]) != e[0] {
			}
		})
		e[1] = device.ResidentStop
		put()
		if err := q.Close(b.Context()); err != nil {
			b.Fatal(err)
		}
		if err := dev.Free(control); err != nil {
			b.Fatal(err)
		}
	})
	for _, n := range []int{1, 4, 64} {
		b.Run(fmt.Sprintf("stream/%d", n), func(b *testing.B) {
			b.ReportAllocs()
			o := streamcopy.Options{Path: stream.PathResident, Resident: streamcopy.ResidentOptions{Workers: 1, Lease: time.Hour, Idle: time.Hour}}
			latency(b, dev, o, apart(dst, src, n, 4<<10))
		})
	}
}

// spinDevice is a simulated device whose resident kernels answer as fast as a CPU can, or take as long as they are
// told to, and do nothing else.
type spinDevice struct {
	*sim.Device
	takes time.Duration // of an entry
	asked bool          // kernels do not run by themselves: answer has them do what they find

	mu     sync.Mutex
	pinned []*mem.Region
	guests []*guestKernel
}

func (d *spinDevice) AllocHost(n int64) (*mem.Region, error) {
	r, err := d.Device.AllocHost(n)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.pinned = append(d.pinned, r)
	return r, err
}

// at returns the pinned bytes at a device address.
func (d *spinDevice) at(addr uint64) []byte {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, r := range d.pinned {
		if off := addr - uint64(r.Dev()); off < uint64(r.Len()) {
			return r.Bytes()[off:]
		}
	}
	return nil
}

func (d *spinDevice) OpenQueue(device.QueueOptions) (device.Queue, error) {
	q := &spinQueue{dev: d}
	q.done = nullEvent{}
	return q, nil
}

type spinQueue struct {
	nullQueue
	dev     *spinDevice
	running sync.WaitGroup
}

func (q *spinQueue) HasKernel(string) bool { return true }

func (q *spinQueue) Record() (device.Event, error) { return spinEvent{q}, nil }

func (q *spinQueue) Close(context.Context) error {
	q.running.Wait()
	return nil
}

func (q *spinQueue) Launch(k *device.Kernel) error {
	control := q.dev.at(k.Args[0])
	ring := q.dev.at(binary.LittleEndian.Uint64(control[device.ResidentRing:]))
	depth, next := binary.LittleEndian.Uint64(control[device.ResidentDepth:]), binary.LittleEndian.Uint64(control[device.ResidentNext:])
	generation := k.Args[2]
	if q.dev.asked {
		q.dev.mu.Lock()
		defer q.dev.mu.Unlock()
		q.dev.guests = append(q.dev.guests, &guestKernel{control: control, ring: ring, depth: depth, next: next, generation: generation})
		return nil
	}
	q.running.Go(func() {
		for seq, stop := next, false; !stop; seq++ {
			b := ring[seq%depth*device.ResidentEntryBytes:]
			for polls := 1; ; polls++ {
				if hostmem.LoadUint64(b) == seq && hostmem.LoadUint64(b[device.ResidentLast:]) == device.ResidentCheck(b) {
					break
				}
				if polls%(1<<16) == 0 {
					runtime.Gosched()
				}
			}
			for seen := time.Now(); q.dev.takes > 0 && time.Since(seen) < q.dev.takes; {
			}
			stop = hostmem.LoadUint64(b[8:]) == device.ResidentStop
			hostmem.StoreUint64(control[device.ResidentDone:], seq)
		}
		hostmem.StoreUint64(control[device.ResidentExited:], generation)
	})
	return nil
}

// spinEvent is done when the queue's kernel has ended.
type spinEvent struct{ q *spinQueue }

func (e spinEvent) Done() (bool, error) { return false, nil }

func (e spinEvent) Wait(context.Context) error {
	if e.q.dev.asked {
		e.q.dev.answer()
	}
	e.q.running.Wait()
	return nil
}

func (spinEvent) Close() {}
