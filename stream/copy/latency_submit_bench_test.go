package copy_test

import (
	"encoding/binary"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/internal/sys/hostmem"
	"github.com/kvlane/kvlane/stream"
	streamcopy "github.com/kvlane/kvlane/stream/copy"
)

// BenchmarkLatencySubmit measures what Submit and Wait take of a CPU, by themselves: nothing runs beside them, and the
// kernels' answers are there before Wait is called.
func BenchmarkLatencySubmit(b *testing.B) {
	for _, workers := range []int{1, 2, 4, 8} {
		for _, n := range []int{1, 4, 16, 64} {
			b.Run(fmt.Sprintf("%d/workers %d", n, workers), func(b *testing.B) { latencySubmit(b, n, workers) })
		}
	}
}

func latencySubmit(b *testing.B, n, workers int) {
	b.Helper()
	dev := &spinDevice{Device: openSim(b, sim.Options{}), asked: true}
	dst, src := pinned(b, dev.Device, 1<<20), deviceMemory(b, dev.Device, 1<<20)
	s := open(b, dev, streamcopy.Options{
		Path: stream.PathResident, Resident: streamcopy.ResidentOptions{Workers: workers, Lease: time.Hour, Idle: time.Hour},
	})
	defer closeStream(b, s)
	batch := apart(dst, src, n, 4<<10)
	submit, wait := make([]time.Duration, 0, 1<<16), make([]time.Duration, 0, 1<<16)
	for b.Loop() {
		begun := time.Now()
		ticket, err := s.Submit(b.Context(), batch)
		submit = within(submit, time.Since(begun))
		if err != nil {
			b.Fatal(err)
		}
		dev.answer()
		begun = time.Now()
		err = ticket.Wait(b.Context())
		wait = within(wait, time.Since(begun))
		if err != nil {
			b.Fatal(err)
		}
	}
	slices.Sort(submit)
	slices.Sort(wait)
	b.ReportMetric(float64(submit[len(submit)/2].Nanoseconds()), "submit-ns")
	b.ReportMetric(float64(wait[len(wait)/2].Nanoseconds()), "wait-ns")
}

// within appends v if there is capacity.
func within(all []time.Duration, v time.Duration) []time.Duration {
	if len(all) < cap(all) {
		all = append(all, v)
	}
	return all
}

// guestKernel is a resident kernel that does what it finds when it is asked to.
type guestKernel struct {
	control, ring           []byte
	depth, next, generation uint64
	left                    bool
}

// answer has all kernels do what they find.
func (d *spinDevice) answer() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, g := range d.guests {
		for !g.left {
			e := g.ring[g.next%g.depth*device.ResidentEntryBytes:]
			if binary.LittleEndian.Uint64(e) != g.next {
				break
			}
			hostmem.StoreUint64(g.control[device.ResidentDone:], g.next)
			g.next++
			if g.left = binary.LittleEndian.Uint64(e[8:]) == device.ResidentStop; g.left {
				hostmem.StoreUint64(g.control[device.ResidentExited:], g.generation)
			}
		}
	}
}
