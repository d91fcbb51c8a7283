package ibverbs

import (
	"errors"
	"syscall"
	"testing"
	"unsafe"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/sys/hostmem"
	"github.com/kvlane/kvlane/internal/testkit"
)

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

func newSendChain(tb testing.TB, depth, sges, inline int) *SendChain {
	tb.Helper()
	c, err := NewSendChain(depth, sges, inline)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		for range 2 {
			must(tb, c.Free())
		}
	})
	return c
}

// The library gets the requests in order, each with its own entries and nothing from the previous
// use of the chain.
func TestChainIsLinked(t *testing.T) {
	f := loadFake(t)
	c := newSendChain(t, 3, 2, 8)
	object := QP(f.object())
	add := func(id uint64, keys ...uint32) {
		w, sges := c.Add(len(keys))
		w.WRID = id
		for i, k := range keys {
			sges[i] = SGE{Addr: 1, Length: uint32(id), LKey: k}
		}
	}
	add(1, 10, 11)
	add(2)
	add(3, 30)
	if w, _ := c.Add(0); w != nil || c.Len() != 3 {
		t.Error("a full chain takes more")
	}
	if n, errno := f.PostSend(object, c); n != 3 || errno != 0 || f.last() != "send [1 1:10 1:11] [2] [3 3:30]" {
		t.Errorf("posted %d, errno %d: %s", n, errno, f.last())
	}
	c.Reset()
	add(4, 40)
	if n, errno := f.PostSend(object, c); n != 1 || errno != 0 || f.last() != "send [4 4:40]" {
		t.Errorf("posted %d, errno %d: %s", n, errno, f.last())
	}
	c.Reset()
	if n, errno := f.PostSend(object, c); n != 0 || errno != 0 || f.last() != "send [4 4:40]" {
		t.Errorf("an empty chain: posted %d, errno %d: %s", n, errno, f.last())
	}
}

func TestRefusedRequestIsFound(t *testing.T) {
	f := loadFake(t)
	object := f.object()
	send := newSendChain(t, 4, 1, 0)
	recv, err := NewRecvChain(4, 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { must(t, recv.Free()) })
	for range 4 {
		send.Add(1)
		recv.Add(1)
	}
	for name, post := range map[string]func() (int, syscall.Errno){
		"send":        func() (int, syscall.Errno) { return f.PostSend(QP(object), send) },
		"recv":        func() (int, syscall.Errno) { return f.PostRecv(QP(object), recv) },
		"shared recv": func() (int, syscall.Errno) { return f.PostSRQRecv(SRQ(object), recv) },
	} {
		for refuse := range 4 {
			f.set(0xffff_ffff-uint64(syscall.ENOMEM)+1, 0, uint64(refuse))
			if n, errno := post(); n != refuse || errno != syscall.ENOMEM {
				t.Errorf("%s: posted %d, errno %d; want %d, ENOMEM", name, n, errno, refuse)
			}
		}
		// Some libraries fail without reporting the failed request.
		f.set(uint64(syscall.EINVAL), 0, 9)
		if n, errno := post(); n != 0 || errno != syscall.EINVAL {
			t.Errorf("%s: posted %d, errno %d; want none, EINVAL", name, n, errno)
		}
		f.set(0, 0, 0)
	}
}

func TestInlinePayloadIsCopied(t *testing.T) {
	c := newSendChain(t, 2, 0, 4)
	payload := []byte("abcd")
	first, second := c.AddInline(payload), c.AddInline(nil)
	copy(payload, "xxxx")
	sge := (*SGE)(pointer(first.sgList))
	if first.numSGE != 1 || sge.Length != 4 || string(unsafe.Slice((*byte)(pointer(uintptr(sge.Addr))), 4)) != "abcd" {
		t.Errorf("%d entries, the first %+v", first.numSGE, sge)
	}
	if second.numSGE != 0 || c.AddInline(payload) != nil {
		t.Errorf("%d entries of a request without payload", second.numSGE)
	}
	if hostmem.OnGoHeap(unsafe.Slice((*byte)(unsafe.Pointer(first)), 8)) || hostmem.OnGoHeap(c.bytes) {
		t.Error("requests or their payload are on the Go heap")
	}
}

func TestChainOfNothing(t *testing.T) {
	if _, err := NewSendChain(0, 1, 0); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("send chain: %v", err)
	}
	if _, err := NewRecvChain(1, -1); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("receive chain: %v", err)
	}
	if _, err := NewWCArray(0); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("completions: %v", err)
	}
}

func TestDataPathAllocatesNothing(t *testing.T) {
	if testkit.Race {
		t.Skip("the race detector drops pooled objects")
	}
	f := loadFake(t)
	object := f.object()
	c := newSendChain(t, 16, 1, 0)
	w, err := NewWCArray(16)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { must(t, w.Free()) })
	f.set(0, 0, 0)
	if n := testing.AllocsPerRun(100, func() {
		c.Reset()
		for range 16 {
			c.Add(1)
		}
		_, posted := f.PostSend(QP(object), c)
		polled := f.PollCQ(CQ(object), w, 16)
		if asked := f.ReqNotifyCQ(CQ(object), false); posted != 0 || polled != 0 || asked != 0 {
			t.Fatalf("answered %d, %d, %d", posted, polled, asked)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// BenchmarkCall measures a call into the library that does nothing.
func BenchmarkCall(b *testing.B) {
	f := loadFake(b)
	object := CQ(f.object())
	f.stopRecording()
	w, err := NewWCArray(1)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { must(b, w.Free()) })
	b.ReportAllocs()
	for b.Loop() {
		f.PollCQ(object, w, 1)
	}
}

// BenchmarkChain measures a work request in a chain of 64: filling the chain and one call.
func BenchmarkChain(b *testing.B) {
	const depth = 64
	f := loadFake(b)
	c := newSendChain(b, depth, 1, 0)
	object := QP(f.object())
	f.stopRecording()
	b.ReportAllocs()
	for b.Loop() {
		c.Reset()
		for i := range uint64(depth) {
			w, sges := c.Add(1)
			w.WRID, w.RemoteAddr = i, i
			sges[0] = SGE{Addr: i, Length: 4096}
		}
		if n, errno := f.PostSend(object, c); n != depth || errno != 0 {
			b.Fatalf("posted %d, errno %d", n, errno)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*depth), "ns/request")
}
