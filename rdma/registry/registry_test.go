package registry_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/internal/leak"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/rdma"
	"github.com/kvlane/kvlane/rdma/rdmatest"
	"github.com/kvlane/kvlane/rdma/registry"
	"github.com/kvlane/kvlane/rdma/soft"
	"github.com/kvlane/kvlane/stream/streamtest"
)

// all has the default access rights of memory in tests.
var all = rdma.MROptions{Access: rdma.AccessLocalWrite | rdma.AccessRemoteWrite | rdma.AccessRemoteRead}

// machine returns software NICs that copy nothing. Closing them must succeed.
func machine(tb testing.TB, so soft.Options, o registry.Options) (*registry.Set, []*registry.Registry) {
	tb.Helper()
	so.Mover = rdmatest.NullMover{}
	p, err := soft.New(so)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { closeOK(tb, p) })
	var provider rdma.Provider = p
	if o.Exporter != nil {
		provider = reader{p}
	}
	set := registry.NewDevices(provider).NewSet(o)
	tb.Cleanup(func() { closeOK(tb, set) })
	names, err := p.Devices()
	if err != nil {
		tb.Fatal(err)
	}
	for _, name := range names {
		if _, err := set.NIC(name); err != nil {
			tb.Fatal(err)
		}
	}
	return set, set.NICs()
}

func closeOK(tb testing.TB, c interface{ Close() error }) {
	tb.Helper()
	if err := c.Close(); err != nil {
		tb.Error(err)
	}
}

// gpu returns a region at an address that is never dereferenced.
func gpu(tb testing.TB, device int, addr, n uint64) *mem.Region {
	tb.Helper()
	r, err := mem.NewRegion(mem.RegionSpec{Kind: mem.KindDevice, Device: device, Len: int64(n), Dev: mem.DevAddr(addr)})
	if err != nil {
		tb.Fatal(err)
	}
	return r
}

func wantErr(tb testing.TB, err error, is ...error) {
	tb.Helper()
	for _, target := range is {
		if !errors.Is(err, target) {
			tb.Errorf("error %v is not %q", err, target)
		}
	}
}

func ended(tb testing.TB) context.Context {
	tb.Helper()
	ctx, cancel := context.WithCancel(tb.Context())
	cancel()
	return ctx
}

func TestFindsInteriorAddresses(t *testing.T) {
	_, nics := machine(t, soft.Options{}, registry.Options{})
	g := nics[0]
	h, d0, d1 := streamtest.Pageable(t, 8192), gpu(t, 0, 0x10000, 0x1000), gpu(t, 1, 0x10000, 0x800)
	if err := g.Register(all, h, d0, d1); err != nil {
		t.Fatal(err)
	}
	for _, e := range []mem.Extent{
		mem.All(h),
		{Region: h, Off: 8191, Len: 1},
		{Region: d0, Off: 0x900, Len: 0x700},
		{Region: d1, Off: 1, Len: 2},
		{Region: gpu(t, 0, 0x10100, 0x100), Off: 3, Len: 5}, // another region with the same bytes
	} {
		m, err := g.Acquire(e, all.Access)
		if err != nil {
			t.Fatal(err)
		}
		addr := uint64(e.Region.Dev()) + uint64(e.Off)
		if e.Region == h {
			addr = uint64(h.CPU()) + uint64(e.Off)
		}
		if m.Addr(e) != addr || m.Info().LKey == 0 || m.Info().RKey == 0 {
			t.Errorf("%+v is at %#x, want %#x", e, m.Addr(e), addr)
		}
		m.Release()
	}
	_, err := g.Acquire(mem.Extent{Region: gpu(t, 1, 0x10400, 0x1000), Len: 0x1000}, all.Access)
	wantErr(t, err, errdefs.ErrInvalid)
	_, err = g.Acquire(mem.All(gpu(t, 3, 0x10000, 1)), all.Access)
	wantErr(t, err, errdefs.ErrNotFound)
}

func TestOverlapsAreRefused(t *testing.T) {
	_, nics := machine(t, soft.Options{}, registry.Options{})
	g := nics[0]
	if err := g.Register(all, gpu(t, 0, 0x10000, 0x1000), gpu(t, 0, 0x30000, 0x1000)); err != nil {
		t.Fatal(err)
	}
	for _, r := range []*mem.Region{
		gpu(t, 0, 0x10000, 0x1000), gpu(t, 0, 0xffff, 2), gpu(t, 0, 0x10fff, 1), gpu(t, 0, 0x2ffff, 2), gpu(t, 0, 0x8000, 0x80000),
	} {
		wantErr(t, g.Register(all, r), errdefs.ErrExists)
	}
	// The regions overlap each other.
	wantErr(t, g.Register(all, gpu(t, 0, 0x50000, 0x10), gpu(t, 0, 0x50008, 0x10)), errdefs.ErrExists)
	wantErr(t, g.Register(all, nil), errdefs.ErrInvalid)
	if g.Len() != 2 {
		t.Errorf("%d regions after refusals", g.Len())
	}
	if err := g.Register(all, gpu(t, 0, 0x11000, 0x1f000), gpu(t, 1, 0x10000, 0x1000)); err != nil {
		t.Errorf("between, and on another device: %v", err)
	}
}

// TestDefectDeregistrationInFlight checks that memory stays registered while it has references, and
// that Acquire no longer returns it after Unregister.
func TestDefectDeregistrationInFlight(t *testing.T) {
	set, nics := machine(t, soft.Options{}, registry.Options{})
	g, r := nics[0], streamtest.Pageable(t, 4096)
	before := leak.Live()[leak.RegisteredBytes.String()]
	if err := g.Register(all, r); err != nil {
		t.Fatal(err)
	}
	m, err := g.Acquire(mem.All(r), all.Access)
	if err != nil {
		t.Fatal(err)
	}
	wantErr(t, g.Unregister(ended(t), r), errdefs.ErrBusy, context.Canceled)
	if _, err := g.Acquire(mem.All(r), all.Access); !errors.Is(err, errdefs.ErrNotFound) {
		t.Errorf("acquired memory that is being unregistered: %v", err)
	}
	wantErr(t, g.Register(all, r), errdefs.ErrExists) // it is still registered
	wantErr(t, set.Close(), errdefs.ErrBusy)
	if n := leak.Live()[leak.RegisteredBytes.String()]; n != before+4096 {
		t.Errorf("%d bytes are registered", n-before)
	}
	done := make(chan error)
	go func() { done <- g.Unregister(t.Context(), r) }()
	select {
	case err := <-done:
		t.Fatalf("unregistered in flight: %v", err)
	case <-time.After(5 * time.Millisecond):
	}
	m.Release()
	if err := <-done; err != nil {
		t.Error(err)
	}
	wantErr(t, g.Unregister(t.Context(), r), errdefs.ErrNotFound)
	if s := g.Stats(); s.By[registry.MethodHost-1] != (registry.MethodStats{Total: 1}) || s.Failed != 0 {
		t.Errorf("stats %+v", s)
	}
	_, err = set.NIC("soft0")
	wantErr(t, err, errdefs.ErrClosed)
	wantErr(t, g.Register(all, r), errdefs.ErrClosed)
}

func TestReleaseTooOftenPanics(t *testing.T) {
	_, nics := machine(t, soft.Options{}, registry.Options{})
	r := streamtest.Pageable(t, 4096)
	if err := nics[0].Register(all, r); err != nil {
		t.Fatal(err)
	}
	m, err := nics[0].Acquire(mem.All(r), all.Access)
	if err != nil {
		t.Fatal(err)
	}
	m.Release()
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	m.Release()
}

// TestDefectRangeTableReadWithoutLock looks up memory without a lock while the table changes. A
// reader must find the same memory in its table as before. The second part is for the race
// detector.
func TestDefectRangeTableReadWithoutLock(t *testing.T) {
	_, nics := machine(t, soft.Options{}, registry.Options{})
	g := nics[0]
	stays := gpu(t, 0, 0x100000, 0x1000)
	if err := g.Register(all, stays, gpu(t, 0, 0x200000, 0x1000)); err != nil {
		t.Fatal(err)
	}
	for i := range uint64(8) { // the table may have space to be changed in place
		table := g.Table()
		was := slices.Clone(table)
		r := gpu(t, 0, 0x10000*(i+1), 0x1000)
		if err := g.Register(all, r); err != nil {
			t.Fatal(err)
		}
		added := g.Table()
		have := slices.Clone(added)
		if err := g.Unregister(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(table, was) || !slices.Equal(added, have) {
			t.Fatal("a table that may have readers was changed")
		}
		if err := g.Register(all, gpu(t, 0, 0x20000*(i+100), 0x1000)); err != nil {
			t.Fatal(err)
		}
	}
	stop := make(chan struct{})
	var readers, writers sync.WaitGroup
	for w := range 3 {
		writers.Go(func() {
			r := gpu(t, 0, uint64(0x1000*(w+1)), 0x1000)
			for range 200 {
				if err := g.Register(all, r); err != nil {
					t.Error(err)
				}
				if err := g.Unregister(t.Context(), r); err != nil {
					t.Error(err)
				}
			}
		})
		readers.Go(func() {
			comes := mem.All(gpu(t, 0, uint64(0x1000*(w+1))+8, 8))
			for {
				select {
				case <-stop:
					return
				default:
				}
				if m, err := g.Acquire(comes, all.Access); err == nil {
					m.Release()
				}
				m, err := g.Acquire(mem.All(stays), all.Access)
				if err != nil {
					t.Error(err)
					return
				}
				m.Release()
			}
		})
	}
	writers.Wait()
	close(stop)
	readers.Wait()
}

// TestLookupsAllocateNothing checks that lookups do not allocate, because every batch makes them.
func TestLookupsAllocateNothing(t *testing.T) {
	_, nics := machine(t, soft.Options{}, registry.Options{})
	for i := range uint64(200) {
		if err := nics[0].Register(all, gpu(t, 0, 0x10000*(i+1), 0x8000)); err != nil {
			t.Fatal(err)
		}
	}
	e := mem.All(gpu(t, 0, 0x10000*77+5, 100))
	n := testing.AllocsPerRun(100, func() {
		m, err := nics[0].Acquire(e, all.Access)
		if err != nil {
			t.Fatal(err)
		}
		m.Release()
	})
	if n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestPartialFailureRollsBack fails each verb in turn while several regions are registered with two
// NICs. Either all regions are registered afterwards, or none.
func TestPartialFailureRollsBack(t *testing.T) {
	for _, op := range []string{soft.OpOpen, soft.OpAllocPD, soft.OpRegMR, soft.OpClose} {
		t.Run(op, func(t *testing.T) {
			testkit.Sweep(t, op, errdefs.ErrNoMemory, func(t *testing.T, plan *fault.Plan) error { t.Helper(); return registerAll(t, plan) })
		})
	}
}

func registerAll(t *testing.T, plan *fault.Plan) (reported error) {
	t.Helper()
	said := func(err error) bool {
		reported = errors.Join(reported, err)
		return err != nil
	}
	twice := func(f func() error) {
		if said(f()) {
			said(f())
		}
	}
	p, err := soft.New(soft.Options{Mover: rdmatest.NullMover{}, Faults: plan, Devices: make([]soft.DeviceOptions, 2)})
	if err != nil {
		t.Fatal(err)
	}
	defer twice(p.Close)
	set := registry.NewDevices(p).NewSet(registry.Options{})
	defer twice(set.Close)
	for _, name := range []string{"soft0", "soft1"} {
		if _, err := set.NIC(name); said(err) {
			return reported
		}
	}
	var regions []*mem.Region
	for _, addr := range []mem.DevAddr{0x1000, 0x9000, 0x4000} {
		r, err := mem.NewRegion(mem.RegionSpec{Kind: mem.KindDevice, Len: 0x1000, Dev: addr})
		if err != nil {
			t.Fatal(err)
		}
		regions = append(regions, r)
	}
	err = registry.Register(set.NICs(), all, regions...)
	for _, g := range set.NICs() {
		want := 3
		if err != nil {
			want = 0
		}
		if g.Len() != want {
			t.Errorf("%d regions on NIC %s after %v", g.Len(), g.Name(), err)
		}
	}
	if said(err) {
		// A retry succeeds, except for memory that could not be deregistered.
		if err = registry.Register(set.NICs(), all, regions...); err != nil {
			wantErr(t, err, errdefs.ErrExists)
			return reported
		}
	}
	twice(func() error { return registry.Unregister(t.Context(), set.NICs(), regions...) })
	return reported
}

func TestSetOpensEachNICOnce(t *testing.T) {
	plan := fault.New(1)
	set, nics := machine(t, soft.Options{Faults: plan}, registry.Options{})
	for range 3 {
		g, err := set.NIC("soft0")
		if err != nil || g != nics[0] {
			t.Errorf("the set returned a different NIC, %v", err)
		}
	}
	if plan.Seen(soft.OpOpen) != 1 || plan.Seen(soft.OpAllocPD) != 1 {
		t.Errorf("opened %d times, %d domains", plan.Seen(soft.OpOpen), plan.Seen(soft.OpAllocPD))
	}
	_, err := set.NIC("mlx5_9")
	wantErr(t, err, errdefs.ErrNotFound)
	for _, m := range []registry.Method{registry.MethodHost, registry.MethodDMABuf, registry.MethodPeerMemory, 9} {
		if m.String() == "" {
			t.Errorf("method %d has no name", uint8(m))
		}
	}
}

func BenchmarkAcquire(b *testing.B) {
	_, nics := machine(b, soft.Options{}, registry.Options{})
	for i := range uint64(160) {
		if err := nics[0].Register(all, gpu(b, 0, 0x10000*(i+1), 0x8000)); err != nil {
			b.Fatal(err)
		}
	}
	e := mem.All(gpu(b, 0, 0x10000*77+5, 100))
	b.ReportAllocs()
	for b.Loop() {
		m, err := nics[0].Acquire(e, all.Access)
		if err != nil {
			b.Fatal(err)
		}
		m.Release()
	}
}
