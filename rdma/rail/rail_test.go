package rail

import (
	"context"
	"errors"
	"testing"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/sys/hostmem"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/rdma/registry"
	"github.com/kvlane/kvlane/rdma/soft"
)

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

func region(tb testing.TB, n int64) *mem.Region {
	tb.Helper()
	b, err := hostmem.Alloc(n)
	must(tb, err)
	tb.Cleanup(func() { must(tb, hostmem.Free(b)) })
	r, err := hostmem.Region(b)
	must(tb, err)
	return r
}

// ends holds two connected queues, with registered memory on both sides.
type ends struct {
	use, serve  *Domain
	here, there *Queue
	local       *mem.Region
	remote      *mem.Region
	key         Key
}

func connected(t *testing.T, o Options, n int64) *ends {
	t.Helper()
	p, err := soft.New(soft.Options{})
	must(t, err)
	t.Cleanup(func() { must(t, p.Close()) })
	e := &ends{local: region(t, n), remote: region(t, n)}
	o.Devices, o.NICs = registry.NewDevices(p), []NIC{{Name: "soft0"}}
	nics, err := New(o)
	must(t, err)
	e.use, err = nics.Use()
	must(t, err)
	e.serve, err = nics.Serve()
	must(t, err)
	t.Cleanup(func() { must(t, errors.Join(e.use.Close(), e.serve.Close())) })
	_, err = e.use.Register(e.local, 0)
	must(t, err)
	keys, err := e.serve.Register(e.remote, 1<<20)
	must(t, err)
	e.key = keys[0]
	e.here, err = e.use.Open(0)
	must(t, err)
	e.there, err = e.serve.Open(0)
	must(t, err)
	t.Cleanup(func() { must(t, errors.Join(e.here.Close(), e.there.Close())) })
	must(t, errors.Join(e.there.Connect(e.here.Endpoint()), e.here.Connect(e.there.Endpoint())))
	return e
}

// TestHostPinnedRegistersDeviceAddress checks that both domains register host-pinned memory by its
// device address. Queues can use all of it, and peers reach it at its offset in a page.
func TestHostPinnedRegistersDeviceAddress(t *testing.T) {
	e := connected(t, Options{}, 4096)
	host := region(t, 1<<14)
	const dev, off = 0x0d00_0000_0001_0000, 192
	r, err := mem.NewRegion(mem.RegionSpec{
		Kind: mem.KindHostPinned, Len: 8192, CPU: host.CPU() + off, Dev: dev + off, Bytes: host.Bytes()[off : off+8192],
	})
	must(t, err)
	own, err := e.use.Register(r, 1<<30)
	must(t, err)
	peers, err := e.serve.Register(r, 1<<30)
	must(t, err)
	if own[0].Addr != dev+off || peers[0].Addr != 1<<30+off {
		t.Errorf("at %#x, and for peers at %#x; want %#x and %#x", own[0].Addr, peers[0].Addr, dev+off, 1<<30+off)
	}
	must(t, errors.Join(e.use.Unregister(t.Context(), r), e.serve.Unregister(t.Context(), r)))
}

// do executes jobs and returns the number of posted requests.
func (e *ends) do(t *testing.T, jobs ...*Job) uint64 {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience())
	defer cancel()
	before := e.here.pair.Posted()
	sent := make(chan error, 1)
	go func() {
		for _, j := range jobs {
			if err := e.here.Send(ctx, j); err != nil {
				sent <- err
				return
			}
		}
		sent <- nil
	}()
	for done := 0; done < len(jobs); {
		n, err := e.here.Wait(ctx)
		must(t, err)
		done += n
	}
	must(t, <-sent)
	return e.here.pair.Posted() - before
}

func (e *ends) job(t *testing.T, write bool, local []mem.Extent, remote []Span) *Job {
	t.Helper()
	h, err := e.use.Lease(0, local)
	must(t, err)
	t.Cleanup(h.Release)
	return &Job{Write: write, Lease: h, Local: local, Key: e.key, Remote: remote}
}

// TestFewRequests checks that adjacent remote bytes are merged into one request with as many local
// pieces as possible, that adjacent local bytes are one piece, and that a write adds one request
// that reads back.
func TestFewRequests(t *testing.T) {
	const n = 4 << 20
	e := connected(t, Options{Depth: 64, MaxSGE: 4}, n)
	scattered := func(pieces int64) (list []mem.Extent) {
		for i := range pieces {
			list = append(list, mem.Extent{Region: e.local, Off: (pieces - 1 - i) * 100, Len: 100})
		}
		return list
	}
	var apart []Span
	for i := range int64(10) {
		apart = AppendSpan(apart, i*200, 100)
	}
	for name, tt := range map[string]struct {
		write  bool
		local  []mem.Extent
		remote []Span
		want   uint64
	}{
		"all":             {true, []mem.Extent{mem.All(e.local)}, []Span{{0, n}}, n/requestBytes + 1},
		"all, read":       {false, []mem.Extent{mem.All(e.local)}, []Span{{0, n}}, n / requestBytes},
		"scattered here":  {true, scattered(16), []Span{{7, 1600}}, 16/4 + 1},
		"scattered there": {true, []mem.Extent{{Region: e.local, Off: 3, Len: 1000}}, apart, 10 + 1},
		"both":            {false, scattered(10), apart, 10},
	} {
		t.Run(name, func(t *testing.T) {
			for i := range e.local.Bytes() {
				e.local.Bytes()[i], e.remote.Bytes()[i] = byte(i*31>>3), byte(i*17>>2)
			}
			if got := e.do(t, e.job(t, tt.write, tt.local, tt.remote)); got != tt.want {
				t.Errorf("%d requests, want %d", got, tt.want)
			}
			var here, there []byte
			for _, x := range tt.local {
				here = append(here, x.Bytes()...)
			}
			for _, s := range tt.remote {
				there = append(there, e.remote.Bytes()[s.Off:s.Off+s.Len]...)
			}
			if string(here) != string(there) {
				t.Error("the bytes of both sides differ")
			}
		})
	}
	if k := len(AppendSpan([]Span{{0, 10}}, 10, 5)); k != 1 {
		t.Errorf("neighbours are %d spans", k)
	}
}

// TestRefusals checks that a refusal belongs to the first incomplete job, and that a closed domain
// cannot be used.
func TestRefusals(t *testing.T) {
	e := connected(t, Options{Depth: 1}, 1<<16)
	list := []mem.Extent{{Region: e.local, Len: 100}}
	good := e.job(t, true, list, []Span{{0, 100}})
	e.do(t, good, e.job(t, true, list, []Span{{100, 100}}), e.job(t, false, list, []Span{{0, 100}}))
	must(t, e.serve.Unregister(t.Context(), e.remote))
	must(t, e.here.Send(t.Context(), e.job(t, false, list, []Span{{0, 100}})))
	n, err := e.here.Wait(t.Context())
	if n != 0 || !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("%d jobs of deregistered memory: %v", n, err)
	}
	for _, nic := range []int{-1, 1} {
		if _, err := e.serve.Open(nic); !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("NIC %d: %v", nic, err)
		}
	}
	if _, err := e.use.Lease(0, []mem.Extent{mem.All(e.remote)}); !errors.Is(err, errdefs.ErrNotFound) {
		t.Errorf("memory that is not registered: %v", err)
	}
	if err := e.serve.Close(); !errors.Is(err, errdefs.ErrBusy) {
		t.Errorf("close while a queue is open: %v", err)
	}
}
