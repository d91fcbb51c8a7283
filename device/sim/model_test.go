package sim_test

import (
	"context"
	"encoding/binary"
	"testing"
	"time"

	"github.com/jonboulle/clockwork"
	"github.com/zeebo/xxh3"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/mem"
)

// timed is a device with a clock that the test advances.
type timed struct {
	rig
	clock *clockwork.FakeClock
	ctx   context.Context
}

func openTimed(t *testing.T, o sim.Options) timed {
	t.Helper()
	clock := clockwork.NewFakeClock()
	o.Clock = clock
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return timed{open(t, o), clock, ctx}
}

// finishes advances the clock until e is done, from one sleeping queue to the next, and checks the
// elapsed time.
func (d *timed) finishes(e device.Event, want time.Duration) {
	d.t.Helper()
	const tick = time.Microsecond
	start := d.clock.Now()
	for {
		if done, err := e.Done(); done {
			must(d.t, err)
			break
		}
		// Either a queue sleeps, so that time must advance, or a queue is about to finish or to
		// sleep.
		ctx, cancel := context.WithTimeout(d.ctx, 5*time.Millisecond)
		if d.clock.BlockUntilContext(ctx, 1) == nil && d.clock.Since(start) < time.Second {
			d.clock.Advance(tick)
		}
		cancel()
		must(d.t, d.ctx.Err())
	}
	if got := d.clock.Since(start); got < want || got > want+3*tick {
		d.t.Errorf("elapsed %v, want %v", got, want)
	}
}

func TestLatencyAndBandwidth(t *testing.T) {
	const us = time.Microsecond
	tests := []struct {
		name string
		o    sim.Options
		work func(q *sim.Queue, r, p *mem.Region) error
		want time.Duration
	}{
		{"latency of a copy", sim.Options{LatencyPerOp: 10 * us}, func(q *sim.Queue, r, p *mem.Region) error {
			return q.Copy(mem.All(r), mem.All(p))
		}, 10 * us},
		{"bandwidth up", sim.Options{BandwidthGBps: 10}, func(q *sim.Queue, r, p *mem.Region) error {
			return q.Copy(mem.All(r), mem.All(p))
		}, 100 * us},
		{"both, down", sim.Options{LatencyPerOp: 10 * us, BandwidthGBps: 10}, func(q *sim.Queue, r, p *mem.Region) error {
			return q.Copy(mem.All(p), mem.All(r))
		}, 110 * us},
		{"a batch has one latency", sim.Options{LatencyPerOp: 10 * us, BandwidthGBps: 10}, func(q *sim.Queue, r, p *mem.Region) error {
			return q.CopyBatch([]mem.Extent{ext(p, 0, 1000), ext(p, 1000, 1000)}, []mem.Extent{ext(r, 0, 1000), ext(r, 1000, 1000)})
		}, 10*us + 200*time.Nanosecond},
		{"inside the device only latency counts", sim.Options{LatencyPerOp: 10 * us, BandwidthGBps: 1}, func(q *sim.Queue, r, _ *mem.Region) error {
			return q.Copy(ext(r, 0, 500_000), ext(r, 500_000, 500_000))
		}, 10 * us},
		{"kernel", sim.Options{LatencyPerOp: 10 * us, BandwidthGBps: 10}, func(q *sim.Queue, r, p *mem.Region) error {
			words(p, 0, uint64(r.Dev()), uint64(p.Dev()), 1e6)
			return q.Launch(launch(device.KernelCopyList, uint64(p.Dev()), 1))
		}, 110 * us},
		{"a delayed copy", sim.Options{Faults: fault.New(1, fault.Nth(sim.OpCopy, 0).Delay(50*us))}, func(q *sim.Queue, r, p *mem.Region) error {
			return q.Copy(mem.All(r), mem.All(p))
		}, 50 * us},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d := openTimed(t, tt.o)
			q, r, p := d.queue(), d.dev(1e6), d.pin(1e6)
			must(t, tt.work(q, r, p))
			d.finishes(d.event(q), tt.want)
		})
	}
}

func TestQueuesShareTheLinkInEachDirection(t *testing.T) {
	d := openTimed(t, sim.Options{BandwidthGBps: 10})
	q1, q2, q3 := d.queue(), d.queue(), d.queue()
	r, p := d.dev(2e6), d.pin(2e6)
	must(t, q1.Copy(ext(r, 0, 1e6), ext(p, 0, 1e6)))
	must(t, q2.Copy(ext(r, 1e6, 1e6), ext(p, 1e6, 1e6)))
	// the opposite direction, concurrently with the first
	must(t, q3.Copy(ext(p, 0, 1e6), ext(r, 0, 1e6)))
	e1, e2, e3 := d.event(q1), d.event(q2), d.event(q3)
	must(t, d.clock.BlockUntilContext(d.ctx, 3))
	d.clock.Advance(100 * time.Microsecond)
	must(t, e3.Wait(d.ctx))
	must(t, d.clock.BlockUntilContext(d.ctx, 1))
	done1, _ := e1.Done()
	done2, _ := e2.Done()
	if done1 && done2 {
		t.Error("two copies of 100 us each passed the link in 100 us")
	}
	d.clock.Advance(100 * time.Microsecond)
	must(t, e1.Wait(d.ctx))
	must(t, e2.Wait(d.ctx))
}

func TestBytesLandAtTheEndOfACopy(t *testing.T) {
	d := openTimed(t, sim.Options{BandwidthGBps: 10})
	q, r, p := d.queue(), d.dev(1e6), d.pin(1e6)
	must(t, q.Copy(mem.All(p), mem.All(r)))
	e := d.event(q)
	must(t, d.clock.BlockUntilContext(d.ctx, 1))
	d.clock.Advance(99 * time.Microsecond)
	if done, _ := e.Done(); done || p.Bytes()[0] != 0 {
		t.Error("the copy was over before its time")
	}
	d.clock.Advance(time.Microsecond)
	must(t, e.Wait(d.ctx))
	if p.Bytes()[0] != sim.PoisonFresh {
		t.Error("the copy did not land")
	}
}

func TestWaitingCarriesTimeOver(t *testing.T) {
	d := openTimed(t, sim.Options{LatencyPerOp: 10 * time.Microsecond})
	q1, q2, r, p := d.queue(), d.queue(), d.dev(64), d.pin(64)
	must(t, q1.Copy(mem.All(r), mem.All(p)))
	must(t, q2.Wait(d.event(q1)))
	must(t, q2.Copy(mem.All(p), mem.All(r)))
	d.finishes(d.event(q2), 20*time.Microsecond)
}

func TestHeldWorkOfAClosedDeviceDoesNotSleep(t *testing.T) {
	d := openTimed(t, sim.Options{LatencyPerOp: time.Hour})
	q, r := d.queue(), d.dev(64)
	must(t, q.Fill(mem.All(r), 1))
	e := d.event(q)
	must(t, d.clock.BlockUntilContext(d.ctx, 1))
	if err := d.Close(); err == nil {
		t.Error("close reported nothing")
	}
	if err := e.Wait(d.ctx); err == nil {
		t.Error("work of a closed device succeeded")
	}
}

// A still device completes work without copying, and its checksums are those of zeros.
func TestStillDeviceMovesNothing(t *testing.T) {
	for _, still := range []bool{false, true} {
		d, err := sim.Open(sim.Options{Still: still})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := d.Close(); err != nil {
				t.Error(err)
			}
		})
		r, err := d.AllocHost(4 * device.LeafBytes)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := d.Free(r); err != nil {
				t.Error(err)
			}
		})
		const desc, sum = 3 * device.LeafBytes, 3*device.LeafBytes + 64
		b := r.Bytes()
		b[0] = 1
		for i, v := range []uint64{uint64(r.Dev()) + device.LeafBytes, uint64(r.Dev()), device.LeafBytes} {
			binary.LittleEndian.PutUint64(b[desc+8*i:], v)
		}
		q, err := d.OpenQueue(device.QueueOptions{})
		if err != nil {
			t.Fatal(err)
		}
		k := device.Kernel{Name: device.KernelCopyListSum, NArgs: 3}
		k.Args[0], k.Args[1], k.Args[2] = uint64(r.Dev())+desc, 1, uint64(r.Dev())+sum
		launcher, ok := q.(device.Launcher)
		if !ok {
			t.Fatal("the queue launches nothing")
		}
		if err := launcher.Launch(&k); err != nil {
			t.Fatal(err)
		}
		if err := q.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if moved := b[device.LeafBytes] == 1; moved == still {
			t.Errorf("with still %t: the byte moved: %t", still, moved)
		}
		leaf := b[:device.LeafBytes]
		if still {
			leaf = make([]byte, device.LeafBytes)
		}
		if got, want := binary.LittleEndian.Uint64(b[sum:]), xxh3.Hash(leaf); got != want {
			t.Errorf("with still %t: sum %#x, want %#x", still, got, want)
		}
	}
}
