package sim_test

import (
	"context"
	"encoding/binary"
	"errors"
	"math/bits"
	"testing"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/internal/sys/hostmem"
	"github.com/kvlane/kvlane/mem"
)

// guest is a resident kernel of one worker, with a control block and a ring of four entries.
type guest struct {
	t       *testing.T
	d       rig
	q       *sim.Queue
	control *mem.Region
	ended   device.Event
	seq     uint64
}

const guestDepth = 4

// invite launches the kernel.
func invite(t *testing.T, d rig, idle, lease time.Duration) *guest {
	t.Helper()
	g := newGuest(t, d)
	g.launch(idle, lease)
	return g
}

// newGuest makes what the kernel reads. What is put before its launch it finds, however late the machine runs it.
func newGuest(t *testing.T, d rig) *guest {
	t.Helper()
	g := &guest{t: t, d: d, q: d.queue(), control: d.pin(device.ResidentControlBytes + guestDepth*device.ResidentEntryBytes)}
	words(g.control, device.ResidentNext, 1, uint64(g.control.Dev())+device.ResidentControlBytes, guestDepth)
	return g
}

func (g *guest) launch(idle, lease time.Duration) {
	g.t.Helper()
	must(g.t, g.q.Launch(launch(device.KernelResident, uint64(g.control.Dev()), device.ResidentControlBytes, 1, uint64(idle), uint64(lease))))
	g.ended = g.d.event(g.q)
}

// put writes the next entry.
func (g *guest) put(w ...uint64) {
	g.seq++
	e := device.ResidentWords{g.seq}
	copy(e[1:], w)
	b := g.control.Bytes()[device.ResidentControlBytes+g.seq%guestDepth*device.ResidentEntryBytes:]
	hostmem.StoreUint64(b[device.ResidentLast:], e.Put(b))
}

func (g *guest) done() uint64 { return hostmem.LoadUint64(g.control.Bytes()[device.ResidentDone:]) }

// leave has the kernel stop, and returns how it ended.
func (g *guest) leave() error {
	g.t.Helper()
	g.put(device.ResidentStop)
	return g.d.sync(g.q)
}

// residentEntries are entries that each copy 64 bytes from p, of which the second half is for descriptors, to r.
func residentEntries(r, p *mem.Region) map[string][]uint64 {
	to, from, at := uint64(r.Dev()), uint64(p.Dev()), uint64(p.Dev())+2048
	words(p, 2048, to, from, 40, to+40, from+40, 24)
	words(p, 3072, to, 64, 64, 0, 0)
	paged := at + 1024
	return map[string][]uint64{
		"inline": {1: to, 2: from, 3: 40, 4: to + 40, 5: from + 40, 6: 24, 13: 2, 0: device.ResidentCopy},
		"list":   {device.ResidentList, at, 2},
		"paged":  {device.ResidentPaged, paged, 1, paged + 32, 1, from, 64, 2},
	}
}

// TestEntriesAreWork: what a resident kernel moves is work, each entry by itself; that the kernel starts and is told to
// stop is not. Faults do to an entry what they do to any other work.
func TestEntriesAreWork(t *testing.T) {
	cause := errors.New("lost the bus")
	for _, name := range []string{"inline", "list", "paged"} {
		for action, rule := range map[string]fault.Rule{
			"none":    fault.Nth(sim.OpWork, 99),
			"fail":    fault.Nth(sim.OpWork, 1).Fail(cause),
			"corrupt": fault.Nth(sim.OpEntry, 1).Corrupt(),
			"partial": fault.Nth(sim.OpWork, 1).Partial(cause),
			"delay":   fault.Nth(sim.OpWork, 1).Delay(5 * time.Millisecond),
		} {
			t.Run(name+" "+action, func(t *testing.T) {
				plan := fault.New(1, rule)
				d := open(t, sim.Options{Faults: plan})
				r, p := d.dev(64), d.pin(4096)
				entry := residentEntries(r, p)[name]
				g := invite(t, d, time.Hour, time.Hour)
				begun := time.Now()
				g.put(entry...)
				await(t, func() bool { return g.done() == 1 })
				for i := range 64 {
					p.Bytes()[i] = 0xff
				}
				g.put(entry...)
				err := g.leave()
				if fails := action == "fail" || action == "partial"; errors.Is(err, cause) != fails || !fails && err != nil {
					t.Fatalf("the kernel ended with %v", err)
				}
				wrong := 0
				for _, v := range d.read(r) {
					wrong += 8 - bits.OnesCount8(v)
				}
				switch {
				case action == "partial" && name != "paged": // half of the pieces; half of one page is none
					if wrong != 24*8 {
						t.Errorf("%d bits were not copied, want those of the second piece", wrong)
					}
				case action == "corrupt" && wrong != 1, action == "delay" && wrong != 0, action == "none" && wrong != 0:
					t.Errorf("%d bits are wrong", wrong)
				case action == "delay" && time.Since(begun) < 5*time.Millisecond:
					t.Error("the entry was not delayed")
				}
				if n := plan.Seen(sim.OpWork); action == "none" && n != 3 { // with read's copy
					t.Errorf("%d operations were work, want two entries and a copy", n)
				}
			})
		}
	}
}

func await(t *testing.T, ok func() bool) {
	t.Helper()
	for begun := time.Now(); !ok(); time.Sleep(20 * time.Microsecond) {
		if time.Since(begun) > patience {
			t.Fatal("it does not happen")
		}
	}
}

// TestStalledEntryIsTaken: an entry that stalls was taken, so its kernel does not leave, also when its lease is over.
func TestStalledEntryIsTaken(t *testing.T) {
	for _, interleave := range []*sim.Interleave{nil, {Seed: 1}} {
		plan := fault.New(1, fault.Nth(sim.OpEntry, 0).Stall())
		d := open(t, sim.Options{Faults: plan, Interleave: interleave})
		r, p := d.dev(64), d.pin(4096)
		g := newGuest(t, d)
		g.put(residentEntries(r, p)["list"]...)
		const stays = 20 * time.Millisecond
		g.launch(stays, stays)
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		must(t, plan.Await(ctx, 1))
		cancel()
		time.Sleep(3 * stays)
		if done, err := g.ended.Done(); done || err != nil {
			t.Fatalf("the kernel ended with %v", err)
		}
		plan.Release()
		must(t, d.sync(g.q))
		if g.done() != 1 {
			t.Errorf("entry %d is done", g.done())
		}
	}
}

// TestFreeWaitsForResidentKernels: as drivers do. The lease ends the wait, whatever the kernel has to do, and so does the
// idle limit.
func TestFreeWaitsForResidentKernels(t *testing.T) {
	for name, limits := range map[string][2]time.Duration{
		"lease": {time.Hour, 10 * time.Millisecond}, "idle": {10 * time.Millisecond, time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			d := open(t, sim.Options{})
			other := d.pin(64)
			g := newGuest(t, d)
			g.put(device.ResidentList, 0, 0)
			g.launch(limits[0], limits[1])
			await(t, func() bool { return g.done() == 1 }) // it runs
			must(t, d.Free(other))
			if hostmem.LoadUint64(g.control.Bytes()[device.ResidentExited:]) != 1 {
				t.Error("memory was freed while a resident kernel ran")
			}
		})
	}
}

// TestDamageReachesSumsOnTheDevice: a byte that is damaged on its way to the device is summed as it arrives, so that the
// sum tells; on its way to the host it was summed before.
func TestDamageReachesSumsOnTheDevice(t *testing.T) {
	const leaf, leaves = device.LeafBytes, 3
	for _, toDevice := range []bool{true, false} {
		for _, name := range []string{device.KernelCopyListSum, device.KernelCopyPagedSum} {
			for seed := range uint64(4) {
				d := open(t, sim.Options{Faults: fault.New(seed, fault.Nth(sim.OpLaunch, 0).Corrupt())})
				q, r, p := d.queue(), d.dev(leaves*leaf), d.pin((leaves+1)*leaf)
				must(t, q.Fill(mem.All(r), 7))
				must(t, d.sync(q))
				dst, src := r, p
				if !toDevice {
					dst, src = p, r
				}
				descs, sums := leaves*leaf, leaves*leaf+1024
				a := uint64(p.Dev())
				var k *device.Kernel
				if name == device.KernelCopyListSum {
					for i := range leaves {
						words(p, descs+i*device.CopyDescBytes, uint64(dst.Dev())+uint64(i*leaf), uint64(src.Dev())+uint64(i*leaf), leaf)
					}
					k = launch(name, a+uint64(descs), leaves, a+uint64(sums))
				} else { // one page of one plane
					words(p, descs, uint64(r.Dev()), leaves*leaf, leaves*leaf, 0, 0, leaves, 0)
					dir := uint64(1)
					if toDevice {
						dir = 2
					}
					k = launch(name, a+uint64(descs), 1, a+uint64(descs)+device.PlaneSumDescBytes, 1, a, leaves*leaf, dir, a+uint64(sums))
				}
				must(t, q.Launch(k))
				must(t, d.sync(q))
				got := p.Bytes()
				if toDevice {
					got = d.read(r)
				}
				told := 0
				for i := range leaves {
					if binary.LittleEndian.Uint64(p.Bytes()[sums+8*i:]) != xxh3.Hash(got[i*leaf:(i+1)*leaf]) {
						told++
					}
				}
				// The sum is right of damaged bytes on the device, and of the sound bytes that were sent to the host.
				if want := map[bool]int{true: 0, false: 1}[toDevice]; told != want {
					t.Errorf("%s, to the device %t, seed %d: %d sums are not of what is there, want %d", name, toDevice, seed, told, want)
				}
			}
		}
	}
}
