package capi_test

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/capi"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream"
)

// mapped returns memory of the host program outside the Go heap.
func mapped(tb testing.TB, n int) []byte {
	tb.Helper()
	b, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = unix.Munmap(b) })
	return b
}

func TestStreamsCopyBetweenRegisteredMemory(t *testing.T) {
	lib := capi.New()
	b := mapped(t, 1<<16)
	p := start(t, lib, configuration(t, t.TempDir(), nil), pages)
	for i := range b {
		b[i] = byte(i * 13)
	}
	host, err := lib.RegisterHost(p.engine, b)
	p.must(err)
	kv, err := lib.RegisterDevice(p.engine, uint64(p.kv.Dev()), p.kv.Len())
	p.must(err)
	s, err := lib.OpenStream(p.engine)
	p.must(err)
	copies := func(c capi.Copies) {
		t.Helper()
		task, err := lib.Copy(s, &c, nil, 0)
		p.must(err)
		p.must(lib.Wait(task, capi.Done, patience))
		p.must(lib.Results(task, nil))
		p.must(lib.Cancel(task))
		p.must(lib.Free(task))
	}
	const half = 1 << 15
	copies(capi.Copies{To: kv, From: host, ToAt: []uint64{100, 9000}, FromAt: []uint64{0, 5000}, Size: []uint64{5000, 7000}})
	copies(capi.Copies{To: host, From: kv, ToAt: []uint64{half}, FromAt: []uint64{100}, Size: []uint64{5000}})
	copies(capi.Copies{To: host, From: kv, ToAt: []uint64{half + 5000}, FromAt: []uint64{9000}, Size: []uint64{7000}})
	if !bytes.Equal(b[half:half+12000], b[:12000]) {
		t.Error("read back wrong bytes")
	}
	_, err = lib.Copy(s, &capi.Copies{To: kv, From: host, ToAt: []uint64{0}, FromAt: []uint64{1 << 63}, Size: []uint64{1}}, nil, 0)
	want(t, "a copy from beyond the end", err, capi.Invalid)
	_, err = lib.Copy(s, &capi.Copies{To: s, From: host}, nil, 0)
	want(t, "a copy to a stream", err, capi.Invalid)
	_, err = lib.RegisterHost(p.engine, make([]byte, 100))
	want(t, "memory of the Go heap", err, capi.Invalid)
	p.must(lib.UnregisterMemory(host, 0))
	want(t, "memory that was taken back", lib.UnregisterMemory(host, 0), capi.Closed)
	p.must(lib.CloseStream(s, patience))
	want(t, "a stream that was closed", lib.CloseStream(s, 0), capi.Closed)
	p.must(lib.UnregisterMemory(kv, patience))
}

// late is a stream that looks at contexts late, as on a busy machine.
type late struct{ stream.Stream }

func (l late) Submit(ctx context.Context, b *mem.Batch) (*stream.Ticket, error) {
	time.Sleep(5 * time.Millisecond)
	return l.Stream.Submit(ctx, b)
}

// A copy that must not wait is refused only by a full stream, however late the stream looks.
func TestDefectCopiesAreBusyWithoutAFullStream(t *testing.T) {
	lib := capi.New()
	b := mapped(t, 1<<16)
	p := start(t, lib, configuration(t, t.TempDir(), nil), pages)
	host, err := lib.RegisterHost(p.engine, b)
	p.must(err)
	var inner stream.Stream
	h, err := lib.OpenStreamBy(p.engine, func(s stream.Stream) stream.Stream {
		inner = s
		return late{s}
	})
	p.must(err)
	one := &capi.Copies{To: host, From: host, ToAt: []uint64{0}, FromAt: []uint64{1 << 15}, Size: []uint64{1 << 15}}
	_, err = lib.Copy(h, one, nil, 0)
	p.must(err)
	full, cancel := context.WithCancel(t.Context())
	defer cancel()
	for !errors.Is(err, errdefs.ErrBusy) {
		within, end := context.WithTimeout(t.Context(), 10*time.Millisecond)
		_, err = inner.Submit(within, &mem.Batch{After: []mem.Dependency{until{full}}})
		end()
	}
	_, err = lib.Copy(h, one, nil, 0)
	want(t, "a full stream", err, capi.Busy)
}

// until is a dependency that is done when a context has ended.
type until struct{ context.Context }

func (until) Err() error { return nil }

// keeping simulates NICs that fail to register memory and keep a part of it. They release that part
// unless stuck is set.
type keeping struct {
	stuck error
	taken int
}

func (k *keeping) Register(...*mem.Region) error { return errdefs.ErrNotSupported }

func (k *keeping) Unregister(context.Context, ...*mem.Region) error {
	if k.stuck == nil {
		k.taken++
	}
	return k.stuck
}

// A failed registration is undone before the memory is unpinned. If that also fails, the error
// reports that the memory must stay, and it is released when the engine is closed.
func TestDefectMemoryIsFreedWhereANICKeepsIt(t *testing.T) {
	lib := capi.New()
	b := mapped(t, 1<<16)
	p := start(t, lib, configuration(t, t.TempDir(), nil), pages)
	const stays = "must stay until the engine is closed"
	k := new(keeping)
	_, err := lib.RegisterHostBy(p.engine, k, b)
	if want(t, "rejected memory", err, capi.NotSupported); k.taken != 1 || strings.Contains(err.Error(), stays) {
		t.Errorf("the NIC released memory %d times: %v", k.taken, err)
	}
	_, err = lib.RegisterDeviceBy(p.engine, k, uint64(p.kv.Dev()), p.kv.Len())
	if want(t, "rejected memory of the device", err, capi.NotSupported); k.taken != 2 || strings.Contains(err.Error(), stays) {
		t.Errorf("the NIC released memory %d times: %v", k.taken, err)
	}
	host, err := lib.RegisterHost(p.engine, b)
	p.must(err)
	p.must(lib.UnregisterMemory(host, 0))

	live := lib.Live()
	k.stuck = errdefs.ErrBusy
	_, err = lib.RegisterHostBy(p.engine, k, b)
	if want(t, "memory that NICs keep", err, capi.NotSupported); !strings.Contains(err.Error(), stays) || lib.Live() != live+1 {
		t.Errorf("%d handles: %v", lib.Live()-live, err)
	}
	if _, err := lib.RegisterHost(p.engine, b); err == nil {
		t.Error("the memory is not pinned any more, but NICs still use it")
	}
	want(t, "an engine with memory that NICs keep", lib.Close(p.engine, 0), capi.Busy)
	k.stuck = nil
	p.close()
	if k.taken != 3 || lib.Live() != 0 {
		t.Errorf("the NIC released memory %d times, %d handles are left", k.taken, lib.Live())
	}
}

// Close of an engine also closes streams and memory that the program has not closed.
func TestEnginesCloseTheirStreamsAndMemory(t *testing.T) {
	lib := capi.New()
	b := mapped(t, 1<<16)
	p := start(t, lib, configuration(t, t.TempDir(), nil), pages)
	host, err := lib.RegisterHost(p.engine, b)
	p.must(err)
	s, err := lib.OpenStream(p.engine)
	p.must(err)
	_, err = lib.Copy(s, &capi.Copies{To: host, From: host, ToAt: []uint64{0}, FromAt: []uint64{1 << 15}, Size: []uint64{1 << 15}}, nil, -1)
	p.must(err)
	p.close()
	if n := lib.Live(); n != 0 {
		t.Errorf("%d handles are left", n)
	}
}
