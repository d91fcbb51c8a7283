package wire

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/internal/sys/hostmem"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/mem"
	streamcopy "github.com/kvlane/kvlane/stream/copy"
)

var patience = testkit.Patience()

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// rig is a simulated device with a Mover that has few short chunks.
type rig struct {
	dev  *sim.Device
	copy *streamcopy.Stream
	m    *Mover
}

func newRig(t *testing.T, so sim.Options) *rig {
	t.Helper()
	d, err := sim.Open(so)
	must(t, err)
	s, err := streamcopy.Open(d, streamcopy.Options{})
	must(t, err)
	m, err := NewMover(MoverOptions{Device: d, Copy: s, ChunkBytes: 8 << 10, Chunks: 3})
	must(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := errors.Join(m.Close(), m.Close(), s.Close(ctx), d.Close()); err != nil {
			t.Error(err)
		}
	})
	return &rig{d, s, m}
}

func (r *rig) alloc(t *testing.T, n int64) *mem.Region {
	t.Helper()
	x, err := r.dev.Alloc(n, device.AllocOptions{})
	must(t, err)
	t.Cleanup(func() { must(t, r.dev.Free(x)) })
	return x
}

func host(t *testing.T, n int64) *mem.Region {
	t.Helper()
	b, err := hostmem.Alloc(n)
	must(t, err)
	t.Cleanup(func() { must(t, hostmem.Free(b)) })
	r, err := hostmem.Region(b)
	must(t, err)
	return r
}

// TestMixedLists checks that lists of host and device memory, in pieces of any length, are sent and
// received in order.
func TestMixedLists(t *testing.T) {
	r := newRig(t, sim.Options{})
	gpu, cpu := r.alloc(t, 1<<20), host(t, 1<<20)
	rng := rand.New(rand.NewPCG(1, 1))
	for range 20 {
		var list []mem.Extent
		var total int64
		at := map[*mem.Region]int64{}
		for range 1 + rng.IntN(60) {
			x := gpu
			if rng.IntN(2) == 0 {
				x = cpu
			}
			n := rng.Int64N(20_000)
			at[x] += rng.Int64N(100)
			if at[x]+n > x.Len() {
				continue
			}
			list = append(list, mem.Extent{Region: x, Off: at[x], Len: n})
			at[x] += n
			total += n
		}
		data := make([]byte, total)
		for i := range data {
			data[i] = byte(rng.Uint32())
		}
		must(t, r.m.Receive(t.Context(), bytes.NewReader(data), list))
		var out bytes.Buffer
		must(t, r.m.Send(t.Context(), &out, list))
		if !bytes.Equal(out.Bytes(), data) {
			t.Fatalf("%d bytes in %d pieces differ after the way back", total, len(list))
		}
	}
}

// failing fails after left bytes.
type failing struct{ left int }

func (f *failing) Read(p []byte) (int, error)  { return f.take(p) }
func (f *failing) Write(p []byte) (int, error) { return f.take(p) }

func (f *failing) take(p []byte) (int, error) {
	n := min(len(p), f.left)
	f.left -= n
	if n < len(p) {
		return n, io.ErrClosedPipe
	}
	return n, nil
}

// TestChunksComeBack checks that every chunk is free after a failure of the socket, of the device,
// or of the context.
func TestChunksComeBack(t *testing.T) {
	for name, f := range map[string]struct {
		rules []fault.Rule
		left  int
		ended bool
	}{
		"socket": {left: 20_000}, "device": {rules: []fault.Rule{fault.After(sim.OpWork, 3).Fail(nil)}, left: math.MaxInt}, "patience": {left: math.MaxInt, ended: true},
	} {
		for _, in := range []bool{true, false} {
			t.Run(name, func(t *testing.T) {
				r := newRig(t, sim.Options{Faults: fault.New(1, f.rules...)})
				list := []mem.Extent{mem.All(r.alloc(t, 1<<20))}
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if f.ended {
					cancel()
				}
				var err error
				if in {
					err = r.m.Receive(ctx, &failing{f.left}, list)
				} else {
					err = r.m.Send(ctx, &failing{f.left}, list)
				}
				if err == nil {
					t.Error("the move succeeded")
				}
				if n := r.m.o.Chunks; r.m.region != nil && (len(r.m.in) != n || len(r.m.out) != n) {
					t.Errorf("%d and %d of %d chunks are free", len(r.m.in), len(r.m.out), n)
				}
			})
		}
	}
}

// moody is a socket that accepts a random part of each write.
type moody struct {
	bytes.Buffer
	rng  *rand.Rand
	idle func() // called while a transfer waits without a chunk
}

func (s *moody) Flush() error {
	s.idle()
	return nil
}

func (s *moody) Ready(int64) bool { return false }

func (s *moody) WriteBy(p []byte, _ time.Time) (int, error) {
	if s.rng.IntN(3) == 0 {
		return s.Write(p)
	}
	return s.Write(p[:s.rng.IntN(len(p)+1)])
}

// TestDefectSlowReaderKeepsChunks checks that no chunk is held while a socket accepts no bytes, and
// that every byte is sent once and in order.
func TestDefectSlowReaderKeepsChunks(t *testing.T) {
	r := newRig(t, sim.Options{})
	gpu := r.alloc(t, 1<<20)
	rng := rand.New(rand.NewPCG(1, 2))
	data := make([]byte, gpu.Len())
	for i := range data {
		data[i] = byte(rng.Uint32())
	}
	must(t, r.m.Receive(t.Context(), bytes.NewReader(data), []mem.Extent{mem.All(gpu)}))
	for range 50 {
		var list []mem.Extent
		var want []byte
		for range 1 + rng.IntN(30) {
			at, n := rng.Int64N(1<<19), rng.Int64N(20_000)
			list = append(list, mem.Extent{Region: gpu, Off: at, Len: n})
			want = append(want, data[at:at+n]...)
		}
		idled := 0
		socket := &moody{rng: rng, idle: func() {
			idled++
			if free := len(r.m.out); free != r.m.o.Chunks {
				t.Errorf("%d of %d chunks are free", free, r.m.o.Chunks)
			}
		}}
		must(t, r.m.Send(t.Context(), socket, list))
		if !bytes.Equal(socket.Bytes(), want) {
			t.Fatalf("%d bytes in %d pieces arrived as %d others", len(want), len(list), socket.Len())
		}
		if idled == 0 && len(want) > firstBytes {
			t.Error("the writer never waited for a chunk")
		}
	}
}

// TestManyAtOnce checks that more concurrent transfers than chunks make progress.
func TestManyAtOnce(t *testing.T) {
	r := newRig(t, sim.Options{})
	x := r.alloc(t, 1<<20)
	done := make(chan error)
	for i := range int64(8) {
		go func() {
			done <- r.m.Receive(t.Context(), bytes.NewReader(make([]byte, 1<<17)), []mem.Extent{{Region: x, Off: i << 17, Len: 1 << 17}})
		}()
	}
	for range 8 {
		must(t, <-done)
	}
}

func TestTable(t *testing.T) {
	m, err := NewMover(MoverOptions{})
	must(t, err)
	x := NewTable(m)
	a, b := host(t, 4096), host(t, 4096)
	must(t, x.Add(1<<20, a))
	must(t, x.Add(1<<20+4096, b))
	must(t, x.Add(math.MaxUint64-4096, a))
	for at, want := range map[uint64]error{
		1<<20 - 1: errdefs.ErrExists, 1<<20 + 1: errdefs.ErrExists, 1<<20 - 4095: errdefs.ErrExists, 1<<20 + 8191: errdefs.ErrExists, math.MaxUint64 - 4095: errdefs.ErrInvalid,
	} {
		if err := x.Add(at, a); !errors.Is(err, want) {
			t.Errorf("add at %#x: %v, want %v", at, err, want)
		}
	}
	for _, c := range []struct {
		at uint64
		n  int64
		ok bool
	}{
		{1 << 20, 4096, true},
		{1<<20 + 4095, 1, true},
		{1<<20 + 4096, 4096, true},
		{1 << 20, 4097, false},
		{1<<20 - 1, 1, false},
		{1<<20 + 8192, 1, false},
		{1 << 20, -1, false},
		{0, 1, false},
		{math.MaxUint64, 1, false},
		{math.MaxUint64 - 4096, 4096, true},
		{math.MaxUint64 - 1, math.MaxInt64, false},
	} {
		err := x.Check(c.at, c.n)
		if (err == nil) != c.ok || err != nil && !errors.Is(err, errdefs.ErrNotFound) {
			t.Errorf("check of %d bytes at %#x: %v", c.n, c.at, err)
		}
		if err := x.Receive(t.Context(), bytes.NewReader(make([]byte, max(c.n, 0)%(1<<20))), c.at, c.n); (err == nil) != c.ok {
			t.Errorf("receive %d bytes at %#x: %v", c.n, c.at, err)
		}
		if err := x.Send(t.Context(), io.Discard, c.at, c.n); (err == nil) != c.ok {
			t.Errorf("send %d bytes at %#x: %v", c.n, c.at, err)
		}
	}
}

// TestRemoveWaits checks that removed memory is no longer found, and that Remove waits until it is
// released.
func TestRemoveWaits(t *testing.T) {
	m, err := NewMover(MoverOptions{})
	must(t, err)
	x := NewTable(m)
	a := host(t, 4096)
	must(t, x.Add(0, a))
	h := x.NewLease(nil)
	must(t, h.Add(0, 10))
	must(t, h.Add(10, 10))
	if len(h.List) != 1 || h.List[0].Len != 20 {
		t.Errorf("%+v", h.List)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := x.Remove(ctx, 0); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("remove leased memory: %v", err)
	}
	if err := x.Check(0, 1); !errors.Is(err, errdefs.ErrNotFound) {
		t.Errorf("check memory that is being removed: %v", err)
	}
	h.Release()
	must(t, x.Remove(t.Context(), 0))
	if err := x.Remove(t.Context(), 0); !errors.Is(err, errdefs.ErrNotFound) {
		t.Errorf("remove twice: %v", err)
	}
	must(t, x.Add(0, a))
}

// TestNoDevice checks that device memory is refused when it is registered without a device.
func TestNoDevice(t *testing.T) {
	r := newRig(t, sim.Options{})
	m, err := NewMover(MoverOptions{})
	must(t, err)
	if err := NewTable(m).Add(0, r.alloc(t, 4096)); !errors.Is(err, errdefs.ErrNotSupported) {
		t.Errorf("device memory: %v", err)
	}
	if _, err := NewMover(MoverOptions{Device: r.dev}); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("a device without a stream: %v", err)
	}
}

// TestBothWays checks that two movers that send to each other more than their chunks hold do not
// deadlock.
func TestBothWays(t *testing.T) {
	const n, links = 200_000, 7
	ends := [2]*rig{newRig(t, sim.Options{}), newRig(t, sim.Options{Index: 1})}
	done := make(chan error)
	for i := range links {
		for _, from := range []int{0, 1} {
			r, w := io.Pipe()
			src, dst := ends[from].alloc(t, n), ends[1-from].alloc(t, n)
			go func() { done <- ends[from].m.Send(t.Context(), w, []mem.Extent{mem.All(src)}) }()
			go func() {
				in := bufio.NewReader(r)
				_, err := in.Peek(1) // the announcement arrives before the bytes
				if i%2 == 0 {        // some bytes arrive late
					time.Sleep(5 * time.Millisecond)
				}
				done <- errors.Join(err, ends[1-from].m.Receive(t.Context(), in, []mem.Extent{mem.All(dst)}))
			}()
		}
	}
	for range 4 * links {
		must(t, <-done)
	}
}

// losing is a socket during whose last bytes another process withdraws its memory.
type losing struct {
	origin *mem.Origin
	left   int
}

func (l *losing) Read(p []byte) (int, error)  { return l.take(p) }
func (l *losing) Write(p []byte) (int, error) { return l.take(p) }

func (l *losing) take(p []byte) (int, error) {
	if l.left -= len(p); l.left <= 0 {
		l.origin.Lose(errdefs.ErrClosed)
	}
	return len(p), nil
}

// TestDefectLostHostMemoryIsReportedGood checks that a transfer fails if another process withdraws
// its host memory meanwhile, although the CPU could access it to the end.
func TestDefectLostHostMemoryIsReportedGood(t *testing.T) {
	m, err := NewMover(MoverOptions{})
	must(t, err)
	theirs := func() (*mem.Region, *losing) {
		own := host(t, 4096)
		o := mem.NewOrigin(func() error { return nil })
		r, err := mem.NewRegion(mem.RegionSpec{Kind: mem.KindHost, Device: mem.NoDevice, Len: own.Len(), CPU: own.CPU(), Bytes: own.Bytes(), Origin: o})
		must(t, err)
		return r, &losing{o, 4096}
	}
	r, socket := theirs()
	if err := m.Send(t.Context(), socket, []mem.Extent{mem.All(r)}); !errors.Is(err, errdefs.ErrLost) {
		t.Errorf("sent: %v", err)
	}
	r, socket = theirs()
	if err := m.Receive(t.Context(), socket, []mem.Extent{mem.All(r)}); !errors.Is(err, errdefs.ErrLost) {
		t.Errorf("received: %v", err)
	}
}

// TestHoldsOnce checks that pieces that alternate between two regions lease each region once.
func TestHoldsOnce(t *testing.T) {
	m, err := NewMover(MoverOptions{})
	must(t, err)
	table := NewTable(m)
	must(t, table.Add(0, host(t, 4096)))
	must(t, table.Add(4096, host(t, 4096)))
	h := table.NewLease(nil)
	for i := range uint64(1000) {
		must(t, h.Keep(i%2*4096+i, 1))
	}
	for i, s := range table.spans {
		if len(s.holders) != 1 || h.spans[i] != s {
			t.Errorf("span %d has %d holders", i, len(s.holders))
		}
	}
	h.Release()
	must(t, table.Remove(t.Context(), 0))
}
