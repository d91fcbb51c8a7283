package capi_test

import (
	"bytes"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/internal/capi"
)

// mapped is memory of the host program, from outside the Go heap.
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
	stream, err := lib.OpenStream(p.engine)
	p.must(err)
	copies := func(c capi.Copies) {
		t.Helper()
		task, err := lib.Copy(stream, &c, nil, 0)
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
		t.Error("other bytes came back")
	}
	_, err = lib.Copy(stream, &capi.Copies{To: kv, From: host, ToAt: []uint64{0}, FromAt: []uint64{1 << 63}, Size: []uint64{1}}, nil, 0)
	want(t, "a copy from beyond the end", err, capi.Invalid)
	_, err = lib.Copy(stream, &capi.Copies{To: stream, From: host}, nil, 0)
	want(t, "a copy to a stream", err, capi.Invalid)
	_, err = lib.RegisterHost(p.engine, make([]byte, 100))
	want(t, "memory of the Go heap", err, capi.Invalid)
	p.must(lib.UnregisterMemory(host, 0))
	want(t, "memory that was taken back", lib.UnregisterMemory(host, 0), capi.Invalid)
	p.must(lib.CloseStream(stream, patience))
	want(t, "a stream that was closed", lib.CloseStream(stream, 0), capi.Invalid)
	p.must(lib.UnregisterMemory(kv, patience))
}

// What the program forgot goes with the engine.
func TestEnginesCloseTheirStreamsAndMemory(t *testing.T) {
	lib := capi.New()
	b := mapped(t, 1<<16)
	p := start(t, lib, configuration(t, t.TempDir(), nil), pages)
	host, err := lib.RegisterHost(p.engine, b)
	p.must(err)
	stream, err := lib.OpenStream(p.engine)
	p.must(err)
	_, err = lib.Copy(stream, &capi.Copies{To: host, From: host, ToAt: []uint64{0}, FromAt: []uint64{1 << 15}, Size: []uint64{1 << 15}}, nil, -1)
	p.must(err)
	p.close()
	if n := lib.Live(); n != 0 {
		t.Errorf("%d handles are left", n)
	}
}
