package mem_test

import (
	"bytes"
	"context"
	"errors"
	"reflect"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/leak"
	"github.com/kvlane/kvlane/internal/sys/hostmem"
	"github.com/kvlane/kvlane/mem"
)

// bufferRig provides the hooks of Buffers. Each hook appends its name to calls, and fails if its
// name is in fail.
type bufferRig struct {
	kind  mem.Kind
	fail  map[string]bool
	calls []string
	kept  []error
	gpu   []byte // content of device memory
}

var errStep = errors.New("the step fails")

func (g *bufferRig) call(name string) error {
	g.calls = append(g.calls, name)
	if g.fail[name] {
		return errStep
	}
	return nil
}

const bufferDev = 0x7f00_0000_0000

func (g *bufferRig) hooks() mem.BufferHooks {
	h := mem.BufferHooks{
		Alloc: func(n int64) (*mem.Region, error) {
			if err := g.call("alloc"); err != nil {
				return nil, err
			}
			if g.kind == mem.KindDevice {
				g.gpu = bytes.Repeat([]byte{0xff}, int(n))
				leak.Add(leak.DeviceBytes, n)
				return mem.NewRegion(mem.RegionSpec{Kind: mem.KindDevice, Len: n, Dev: bufferDev})
			}
			b, err := hostmem.Alloc(n)
			if err != nil {
				return nil, err
			}
			for i := range b {
				b[i] = 0xff
			}
			return hostmem.Region(b)
		},
		Free: func(r *mem.Region) error {
			if err := g.call("free"); err != nil {
				return err
			}
			if g.kind == mem.KindDevice {
				leak.Add(leak.DeviceBytes, -r.Len())
				return nil
			}
			return hostmem.Free(r.Bytes())
		},
		Register:   func(*mem.Region) (uint32, error) { return 7, g.call("register") },
		Deregister: func(context.Context, *mem.Region) error { return g.call("deregister") },
		Zero: func(e mem.Extent) error {
			if err := g.call("zero"); err != nil {
				return err
			}
			clear(g.gpu[e.Off : e.Off+e.Len])
			return nil
		},
		Kept: func(err error) { g.kept = append(g.kept, err) },
	}
	if g.kind == mem.KindHostPinned {
		h.Pin = func(r *mem.Region) (*mem.Region, error) {
			if err := g.call("pin"); err != nil {
				return nil, err
			}
			return mem.NewRegion(mem.RegionSpec{Kind: mem.KindHostPinned, Len: r.Len(), CPU: r.CPU(), Dev: bufferDev, Bytes: r.Bytes()})
		}
		h.Unpin = func(*mem.Region) error { return g.call("unpin") }
	}
	return h
}

func (g *bufferRig) open(tb testing.TB, count, capacity int64) *mem.Buffers {
	tb.Helper()
	b, err := mem.NewBuffers(mem.BufferOptions{Kind: g.kind, Count: count, Capacity: capacity, Hooks: g.hooks()})
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

func closeBuffers(tb testing.TB, b *mem.Buffers) {
	tb.Helper()
	if err := b.Close(context.WithoutCancel(tb.Context())); err != nil {
		tb.Error(err)
	}
}

func lend(tb testing.TB, b *mem.Buffers, n int64) mem.Buffer {
	tb.Helper()
	x, err := b.TryAcquire(n)
	if err != nil {
		tb.Fatal(err)
	}
	return x
}

// TestBuffersStride checks that capacities are rounded up to multiples of 64 bytes, not to powers
// of two, and that both addresses of a buffer have the same offset.
func TestBuffersStride(t *testing.T) {
	for _, kind := range []mem.Kind{mem.KindHost, mem.KindHostPinned, mem.KindDevice} {
		for capacity, stride := range map[int64]int64{1: 64, 63: 64, 64: 64, 65: 128, 71: 128, 4160: 4160, 4161: 4224} {
			b := (&bufferRig{kind: kind}).open(t, 3, capacity)
			if b.Stride() != stride || b.Region().Len() != 3*stride {
				t.Errorf("%s buffers of %d bytes have stride %d in %s", kind, capacity, b.Stride(), b.Region())
			}
			for i := range int64(3) {
				x := lend(t, b, capacity)
				e, err := b.Extent(x)
				if err != nil {
					t.Fatal(err)
				}
				if int64(x.Index()) != i || e.Off != i*stride || e.Len != capacity || x.CPU != e.CPU() || x.Dev != e.Dev() || x.Key != 7 {
					t.Errorf("%s buffer %d is %+v at %+v", kind, i, x, e)
				}
				if r := b.Region(); kind == mem.KindHostPinned && int64(x.CPU-r.CPU()) != int64(x.Dev-r.Dev()) {
					t.Errorf("buffer %d has different offsets", i)
				}
				defer func() {
					if err := b.Release(x); err != nil {
						t.Error(err)
					}
					if b.Stats().Lent == 0 {
						closeBuffers(t, b)
					}
				}()
			}
		}
	}
}

// TestBuffersReady checks which kinds of memory can be used for send buffers and flags.
func TestBuffersReady(t *testing.T) {
	if n := reflect.TypeFor[mem.Buffer]().Size(); n != 32 {
		t.Errorf("a buffer has %d bytes", n)
	}
	for kind, ready := range map[mem.Kind]bool{mem.KindHost: false, mem.KindHostPinned: true, mem.KindDevice: false} {
		b := (&bufferRig{kind: kind}).open(t, 1, 64)
		x := lend(t, b, 16)
		if err := x.CheckReady(); (err == nil) != ready || err != nil && !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("%s: %v", kind, err)
		}
		for _, y := range []mem.Buffer{{}, {CPU: x.CPU, Dev: x.Dev, Len: x.Len}} {
			if err := y.CheckReady(); !errors.Is(err, errdefs.ErrInvalid) {
				t.Errorf("%+v: %v", y, err)
			}
		}
		if ready {
			for _, change := range []func(x *mem.Buffer){func(x *mem.Buffer) { x.CPU = 0 }, func(x *mem.Buffer) { x.Dev = 0 }, func(x *mem.Buffer) { x.Len = 0 }} {
				y := x
				change(&y)
				if err := y.CheckReady(); !errors.Is(err, errdefs.ErrInvalid) {
					t.Errorf("%+v: %v", y, err)
				}
			}
		}
		if err := b.Release(x); err != nil {
			t.Error(err)
		}
		closeBuffers(t, b)
	}
}

func TestBuffersRefuseSizes(t *testing.T) {
	b := (&bufferRig{kind: mem.KindHostPinned}).open(t, 2, 100)
	for _, n := range []int64{0, -1, 101, 128, 1 << 40} {
		_, err := b.TryAcquire(n)
		_, err2 := b.Acquire(t.Context(), n)
		if !errors.Is(err, errdefs.ErrInvalid) || !errors.Is(err2, errdefs.ErrInvalid) {
			t.Errorf("%d bytes of 100: %v, %v", n, err, err2)
		}
	}
	x, y := lend(t, b, 1), lend(t, b, 100)
	if _, err := b.TryAcquire(1); !errors.Is(err, errdefs.ErrBusy) {
		t.Errorf("a third of two: %v", err)
	}
	if err := b.Close(t.Context()); !errors.Is(err, errdefs.ErrBusy) {
		t.Errorf("close while buffers are lent: %v", err)
	}
	if _, err := b.TryAcquire(1); !errors.Is(err, errdefs.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
	if err := errors.Join(b.Release(x), b.Release(y)); err != nil {
		t.Error(err)
	}
	if s := b.Stats(); s.HighWater != 2 || s.Lent != 0 {
		t.Errorf("stats %+v", s)
	}
	closeBuffers(t, b)
}

func TestBuffersWaitWithContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := (&bufferRig{kind: mem.KindHost}).open(t, 1, 64)
		x := lend(t, b, 64)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := b.Acquire(ctx, 1); !errors.Is(err, errdefs.ErrBusy) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("after a second: %v", err)
		}
		go func() {
			time.Sleep(time.Second)
			if err := b.Release(x); err != nil {
				t.Error(err)
			}
		}()
		y, err := b.Acquire(t.Context(), 1)
		if err != nil {
			t.Fatal(err)
		}
		if err := b.Release(y); err != nil {
			t.Error(err)
		}
		closeBuffers(t, b)
	})
}

// TestBuffersRefuseForeign checks that a second release of a buffer is refused, and so are entries
// that do not belong to a lent buffer.
func TestBuffersRefuseForeign(t *testing.T) {
	b, other := (&bufferRig{kind: mem.KindHostPinned}).open(t, 4, 64), (&bufferRig{kind: mem.KindHostPinned}).open(t, 8, 64)
	x, y := lend(t, b, 32), lend(t, b, 32)
	if err := b.Release(x); err != nil {
		t.Fatal(err)
	}
	again := lend(t, b, 32) // lends the same memory again
	if again.CPU != x.CPU {
		t.Fatalf("%+v is not the memory of %+v", again, x)
	}
	foreign := lend(t, other, 32)
	inside, otherDev, long := y, y, y
	inside.CPU, inside.Dev = inside.CPU+8, inside.Dev+8
	otherDev.Dev = again.Dev
	long.Len = 65
	for name, z := range map[string]mem.Buffer{
		"released already": x, "no buffer": {}, "of others": foreign, "inside a buffer": inside,
		"two buffers": otherDev, "longer than the capacity": long,
	} {
		for op, err := range map[string]error{"release": b.Release(z), "quarantine": b.Quarantine(z, nil)} {
			if !errors.Is(err, errdefs.ErrInvalid) {
				t.Errorf("%s: %s: %v", op, name, err)
			}
		}
		if _, err := b.Extent(z); !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("memory of %s: %v", name, err)
		}
	}
	if s := b.Stats(); s.Lent != 2 || s.Quarantined != 0 {
		t.Errorf("stats %+v", s)
	}
	if err := errors.Join(b.Release(y), b.Release(again), other.Release(foreign)); err != nil {
		t.Error(err)
	}
	closeBuffers(t, b)
	closeBuffers(t, other)
}

// TestBuffersZero checks that buffers are zero when they are lent for the first time and again.
func TestBuffersZero(t *testing.T) {
	for _, kind := range []mem.Kind{mem.KindHost, mem.KindHostPinned, mem.KindDevice} {
		g := &bufferRig{kind: kind}
		b := g.open(t, 1, 100)
		content := func() []byte {
			if kind == mem.KindDevice {
				return g.gpu
			}
			return b.Region().Bytes()
		}
		for round := range 4 {
			x := lend(t, b, 10)
			if !bytes.Equal(content(), make([]byte, 128)) {
				t.Fatalf("%s buffer in round %d: %x", kind, round, content())
			}
			for i := range content() {
				content()[i] = 0xee // includes the bytes after the lent ones
			}
			if round%2 == 0 {
				if err := b.Release(x); err != nil {
					t.Fatal(err)
				}
				continue
			}
			quiesced := make(chan struct{})
			if err := b.Quarantine(x, quiesced); err != nil {
				t.Fatal(err)
			}
			if _, err := b.TryAcquire(1); !errors.Is(err, errdefs.ErrBusy) || content()[0] != 0xee || b.Stats().Quarantined != 1 {
				t.Errorf("a buffer in quarantine: %v, content %x, stats %+v", err, content()[0], b.Stats())
			}
			close(quiesced)
			y, err := b.Acquire(t.Context(), 1)
			if err != nil || !bytes.Equal(content(), make([]byte, 128)) {
				t.Fatalf("after quarantine: %v, %x", err, content())
			}
			if err := b.Release(y); err != nil {
				t.Fatal(err)
			}
		}
		closeBuffers(t, b)
	}
}

// TestBuffersThatAreNotZeroed checks that a buffer stays lent while it cannot be zeroed.
func TestBuffersThatAreNotZeroed(t *testing.T) {
	g := &bufferRig{kind: mem.KindDevice, fail: map[string]bool{}}
	b := g.open(t, 1, 64)
	x := lend(t, b, 64)
	g.fail["zero"] = true
	if err := b.Release(x); !errors.Is(err, errStep) {
		t.Errorf("release: %v", err)
	}
	if s := b.Stats(); s.Lent != 1 || s.Unzeroed != 1 {
		t.Errorf("stats %+v", s)
	}
	g.fail["zero"] = false
	if err := b.Release(x); err != nil {
		t.Error(err)
	}
	closeBuffers(t, b)
}

// TestBuffersFreeInOrder fails each step of freeing once. Later steps must not be executed.
func TestBuffersFreeInOrder(t *testing.T) {
	for _, kind := range []mem.Kind{mem.KindHost, mem.KindHostPinned, mem.KindDevice} {
		steps := []string{"deregister", "unpin", "free"}
		if kind != mem.KindHostPinned {
			steps = []string{"deregister", "free"}
		}
		for i, step := range steps {
			g := &bufferRig{kind: kind, fail: map[string]bool{}}
			b := g.open(t, 1, 64)
			g.calls, g.fail[step] = nil, true
			err := b.Close(t.Context())
			if !errors.Is(err, errStep) || !slices.Equal(g.calls, steps[:i+1]) {
				t.Errorf("%s: %s fails: %v after %q", kind, step, err, g.calls)
			}
			if b.Stats().Kept != 1 || len(g.kept) != 1 || !errors.Is(g.kept[0], errStep) {
				t.Errorf("%s: %s fails: kept %d, logged %v", kind, step, b.Stats().Kept, g.kept)
			}
			g.calls, g.fail[step] = nil, false
			closeBuffers(t, b)
			if !slices.Equal(g.calls, steps[i:]) {
				t.Errorf("%s: after %s failed: %q", kind, step, g.calls)
			}
			closeBuffers(t, b)
			if !slices.Equal(g.calls, steps[i:]) {
				t.Errorf("%s: a second Close: %q", kind, g.calls)
			}
		}
	}
}

// TestBuffersUndo fails each step of opening. Earlier steps must be undone.
func TestBuffersUndo(t *testing.T) {
	for _, kind := range []mem.Kind{mem.KindHostPinned, mem.KindDevice} {
		for step, want := range map[string][]string{
			"alloc":    {"alloc"},
			"pin":      {"alloc", "pin", "free"},
			"zero":     {"alloc", "zero", "free"},
			"register": {"alloc", "pin", "register", "unpin", "free"},
		} {
			if kind == mem.KindDevice && step == "register" {
				want = []string{"alloc", "zero", "register", "free"}
			}
			if (kind == mem.KindDevice) == (step == "pin") || kind == mem.KindHostPinned && step == "zero" {
				continue
			}
			g := &bufferRig{kind: kind, fail: map[string]bool{step: true}}
			_, err := mem.NewBuffers(mem.BufferOptions{Kind: kind, Count: 1, Capacity: 64, Hooks: g.hooks()})
			if !errors.Is(err, errStep) || !slices.Equal(g.calls, want) {
				t.Errorf("%s: %s fails: %v after %q, want %q", kind, step, err, g.calls, want)
			}
		}
	}
}

func TestBuffersRefuseOptions(t *testing.T) {
	good := func() mem.BufferOptions {
		return mem.BufferOptions{Kind: mem.KindDevice, Count: 1, Capacity: 64, Hooks: (&bufferRig{kind: mem.KindDevice}).hooks()}
	}
	for name, change := range map[string]func(o *mem.BufferOptions){
		"a file":            func(o *mem.BufferOptions) { o.Kind = mem.KindFile },
		"another kind":      func(o *mem.BufferOptions) { o.Kind = mem.KindHostPinned },
		"no buffers":        func(o *mem.BufferOptions) { o.Count = 0 },
		"no bytes":          func(o *mem.BufferOptions) { o.Capacity = 0 },
		"too long":          func(o *mem.BufferOptions) { o.Capacity = 1 << 32 },
		"too many":          func(o *mem.BufferOptions) { o.Count = 1 << 31 },
		"no Alloc":          func(o *mem.BufferOptions) { o.Hooks.Alloc = nil },
		"no Deregister":     func(o *mem.BufferOptions) { o.Hooks.Deregister = nil },
		"no Zero":           func(o *mem.BufferOptions) { o.Hooks.Zero = nil },
		"Unpin without Pin": func(o *mem.BufferOptions) { o.Hooks.Unpin = o.Hooks.Free },
		"memory not aligned": func(o *mem.BufferOptions) {
			o.Hooks.Alloc = unaligned
			o.Hooks.Free = func(*mem.Region) error { return nil }
		},
	} {
		o := good()
		change(&o)
		if _, err := mem.NewBuffers(o); !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func unaligned(n int64) (*mem.Region, error) {
	return mem.NewRegion(mem.RegionSpec{Kind: mem.KindDevice, Len: n, Dev: bufferDev + 32})
}

// TestBuffersConcurrently lends, writes and releases on many goroutines.
func TestBuffersConcurrently(t *testing.T) {
	b := (&bufferRig{kind: mem.KindHostPinned}).open(t, 5, 100)
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for i := range 200 {
				x, err := b.Acquire(t.Context(), 100)
				if err != nil {
					t.Error(err)
					return
				}
				e, err := b.Extent(x)
				if err != nil || !bytes.Equal(e.Bytes(), make([]byte, 100)) {
					t.Errorf("%v: %x", err, e.Bytes())
				}
				for j := range e.Bytes() {
					e.Bytes()[j] = byte(i + 1)
				}
				if i%8 == 0 {
					quiesced := make(chan struct{})
					err = b.Quarantine(x, quiesced)
					close(quiesced)
				} else {
					err = b.Release(x)
				}
				if err != nil {
					t.Error(err)
				}
				if i%16 == 1 && !errors.Is(b.Release(x), errdefs.ErrInvalid) {
					t.Error("released twice")
				}
			}
		})
	}
	wg.Wait()
	closeBuffers(t, b)
}
