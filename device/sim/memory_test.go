package sim_test

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/sys/hostmem"
	"github.com/kvlane/kvlane/mem"
)

func TestAddressesAreMadeUpAndNeverUsedTwice(t *testing.T) {
	a, b := open(t, sim.Options{}), open(t, sim.Options{Index: 1})
	type taken struct{ from, to mem.DevAddr }
	var all []taken
	for range 50 {
		for _, r := range []*mem.Region{a.dev(5000), a.pin(5000), b.dev(5000), b.pin(5000)} {
			if top := r.Dev() >> 47; top == 0 || top == 1<<17-1 {
				t.Fatalf("device address %#x could be dereferenced", uint64(r.Dev()))
			}
			for _, o := range all {
				if r.Dev() < o.to && o.from < r.Dev()+5000 {
					t.Fatalf("device address %#x was used before", uint64(r.Dev()))
				}
			}
			all = append(all, taken{r.Dev(), r.Dev() + 5000})
			owner := a
			if r.Device() == 1 {
				owner = b
			}
			must(t, owner.Free(r))
		}
	}
}

func TestPoison(t *testing.T) {
	d := open(t, sim.Options{})
	r := d.dev(100_000)
	if got := d.read(r); count(got, sim.PoisonFresh) != len(got) {
		t.Errorf("fresh device memory reads %#x...", got[:8])
	}
	p := d.pin(100_000)
	view := p.Bytes()
	must(t, d.Free(p))
	if count(view, sim.PoisonFreed) != len(view) {
		t.Errorf("freed pinned memory reads %#x...", view[:8])
	}
}

func TestCloseReportsWritesToFreedMemory(t *testing.T) {
	d := open(t, sim.Options{})
	p := d.pin(4096)
	view := p.Bytes()
	must(t, d.Free(p))
	view[17] = 1
	if err := d.Close(); err == nil || !strings.Contains(err.Error(), "byte 17 of the 4096 pinned bytes") {
		t.Errorf("close: %v", err)
	}
}

func TestQuarantineIsBounded(t *testing.T) {
	d := open(t, sim.Options{QuarantineBytes: 8192})
	var views [][]byte
	for i := range 3 {
		p := d.pin(4096)
		views = append(views, p.Bytes())
		must(t, d.Free(p))
		if i == 0 {
			views[0][5] = 0 // detected when the third region evicts the first
		}
	}
	if views[1][0] != sim.PoisonFreed || views[2][0] != sim.PoisonFreed {
		t.Error("young memory left the quarantine")
	}
	big := d.pin(16384)
	must(t, d.Free(big)) // too large for the quarantine, so it is unmapped at once
	if err := d.Close(); err == nil || !strings.Contains(err.Error(), "byte 5 ") {
		t.Errorf("close: %v", err)
	}
}

func TestUseAfterFree(t *testing.T) {
	free := func(d rig, regions ...*mem.Region) {
		for _, r := range regions {
			must(t, d.Free(r))
		}
	}
	t.Run("is refused when enqueued", func(t *testing.T) {
		d := open(t, sim.Options{})
		q, r, p := d.queue(), d.dev(4096), d.pin(4096)
		free(d, r)
		for name, err := range map[string]error{
			"copy to":   q.Copy(mem.All(r), mem.All(p)),
			"copy from": q.Copy(mem.All(p), mem.All(r)),
			"fill":      q.Fill(mem.All(r), 1),
			"batch":     q.CopyBatch([]mem.Extent{mem.All(p)}, []mem.Extent{mem.All(r)}),
		} {
			if !errors.Is(err, errdefs.ErrInvalid) {
				t.Errorf("%s freed memory: %v", name, err)
			}
		}
		must(t, d.sync(q))
	})
	work := map[string]func(q *sim.Queue, r, p *mem.Region) error{
		"copy to":   func(q *sim.Queue, r, p *mem.Region) error { return q.Copy(mem.All(r), mem.All(p)) },
		"copy from": func(q *sim.Queue, r, p *mem.Region) error { return q.Copy(mem.All(p), mem.All(r)) },
		"fill":      func(q *sim.Queue, r, _ *mem.Region) error { return q.Fill(mem.All(r), 1) },
		"batch": func(q *sim.Queue, r, p *mem.Region) error {
			return q.CopyBatch([]mem.Extent{mem.All(p)}, []mem.Extent{mem.All(r)})
		},
		"kernel": func(q *sim.Queue, r, p *mem.Region) error {
			words(p, 0, uint64(r.Dev()), uint64(p.Dev()), 8)
			return q.Launch(launch(device.KernelCopyList, uint64(p.Dev()), 1))
		},
	}
	for name, enqueue := range work {
		t.Run("breaks the queue when the work runs: "+name, func(t *testing.T) {
			d := manual(t, sim.Options{})
			q, other, r, p := d.queue(), d.queue(), d.dev(4096), d.pin(4096)
			must(t, enqueue(q, r, p))
			free(d, r)
			err := d.sync(q)
			var native *device.Error
			if !errors.As(err, &native) || native.Name != "SIM_ERROR_ILLEGAL_ADDRESS" || !strings.Contains(err.Error(), "use after free") {
				t.Fatalf("the event returns %v", err)
			}
			if timer := d.sync(q); !errors.Is(timer, native) {
				t.Errorf("the next event returns %v", timer)
			}
			if err := q.Fill(mem.All(p), 0); !errors.Is(err, errdefs.ErrBroken) || !errors.Is(err, native) {
				t.Errorf("the next call returns %v", err)
			}
			must(t, other.Fill(mem.All(p), 0))
			must(t, d.sync(other))
		})
	}
}

func TestManyTombstones(t *testing.T) {
	d := open(t, sim.Options{})
	kept := d.dev(64)
	var last *mem.Region
	for range 3000 {
		last = d.dev(64)
		must(t, d.Free(last))
	}
	if err := d.Free(last); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("freeing twice: %v", err)
	}
	if got := d.read(kept); count(got, sim.PoisonFresh) != 64 {
		t.Errorf("the one region kept reads %#x", got)
	}
}

func TestLimits(t *testing.T) {
	d := open(t, sim.Options{MemoryBytes: 10_000, HostRegisterLimitBytes: 10_000, HostRegisterMaxBytes: 6000})
	b, err := hostmem.Alloc(6001)
	must(t, err)
	t.Cleanup(func() { _ = d.Close(); must(t, hostmem.Free(b)) })
	alloc := func(n int64) (*mem.Region, error) { return d.Alloc(n, device.AllocOptions{}) }
	register := func(n int64) (*mem.Region, error) { return d.RegisterHost(b[:n]) }
	steps := []struct {
		name string
		do   func(int64) (*mem.Region, error)
		n    int64
		want error
	}{
		{"device", alloc, 6000, nil},
		{"device, all the rest", alloc, 4000, nil},
		{"device, one byte more", alloc, 1, errdefs.ErrNoMemory},
		{"one registration too large", register, 6001, errdefs.ErrNoMemory},
		{"one pinned allocation too large", d.AllocHost, 6001, errdefs.ErrNoMemory},
		{"registration", register, 6000, nil},
		{"pinned", d.AllocHost, 4000, nil},
		{"pinned, one byte more", d.AllocHost, 1, errdefs.ErrNoMemory},
	}
	var held []*mem.Region
	for _, s := range steps {
		r, err := s.do(s.n)
		if !errors.Is(err, s.want) {
			t.Fatalf("%s: %v, want %v", s.name, err, s.want)
		}
		if r != nil {
			held = append(held, r)
		}
	}
	for _, r := range held {
		must(t, d.Free(r))
	}
	for _, s := range steps {
		if s.want == nil {
			r, err := s.do(s.n)
			must(t, err)
			must(t, d.Free(r))
		}
	}
}

func TestGoHeapIsNotRegistered(t *testing.T) {
	d := open(t, sim.Options{})
	if r, err := d.RegisterHost(make([]byte, 1<<20)); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("registered %v, %v", r, err)
	}
}

func TestOptionsValidateReportsEverything(t *testing.T) {
	o := sim.Options{
		Index: -1, MemoryBytes: -1, HostRegisterLimitBytes: -1, HostRegisterMaxBytes: -1,
		BandwidthGBps: math.NaN(), LatencyPerOp: -time.Second,
	}
	_, err := sim.Open(o)
	if !errors.Is(err, errdefs.ErrInvalid) {
		t.Fatalf("open: %v", err)
	}
	for _, field := range []string{"Index", "MemoryBytes", "HostRegisterLimitBytes", "HostRegisterMaxBytes", "BandwidthGBps", "LatencyPerOp"} {
		if !strings.Contains(err.Error(), field) {
			t.Errorf("%s is missing in: %v", field, err)
		}
	}
}

func TestDeviceCloseEndsHeldWork(t *testing.T) {
	for name, o := range map[string]sim.Options{
		"concurrent": {}, "interleaved": {Interleave: &sim.Interleave{}}, "manual": {Interleave: &sim.Interleave{Manual: true}},
	} {
		t.Run(name, func(t *testing.T) {
			d := open(t, o)
			q, p := d.queue(), d.pin(64)
			must(t, d.adopt(q).WaitValue(ext(p, 0, 8), 1))
			must(t, q.Fill(mem.All(p), 9))
			e := d.event(q)
			err := d.Close()
			if err == nil || !strings.Contains(err.Error(), "1 queues and 1 regions (64 bytes)") {
				t.Errorf("close: %v", err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			if err := e.Wait(ctx); !errors.Is(err, errdefs.ErrClosed) {
				t.Errorf("the event of held work: %v", err)
			}
			if err := q.Close(ctx); err != nil {
				t.Errorf("closing the queue of a closed device: %v", err)
			}
		})
	}
}

// TestAnotherNameForMemory checks a region that other code made from the address of an allocation.
// It works like the allocation's region as long as the allocation exists and contains all of it.
func TestAnotherNameForMemory(t *testing.T) {
	d := open(t, sim.Options{})
	r, host := d.dev(4096), d.pin(4096)
	name := func(off mem.DevAddr, n int64) *mem.Region {
		other, err := mem.NewRegion(mem.RegionSpec{Kind: mem.KindDevice, Device: r.Device(), Len: n, Dev: r.Dev() + off})
		must(t, err)
		return other
	}
	q := d.queue()
	must(t, q.Copy(mem.All(name(1024, 512)), mem.Extent{Region: host, Len: 512}))
	must(t, d.sync(q))
	if err := q.Copy(mem.All(name(3840, 512)), mem.Extent{Region: host, Len: 512}); err == nil {
		t.Error("a region that ends behind the allocation was taken")
	}
}
