package transfer

import (
	"encoding/binary"
	"io"
	"net"
	"testing"
	"time"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/share"
	"github.com/kvlane/kvlane/wire"
)

// greet opens a connection to the engine and exchanges hello and welcome.
func greet(t *testing.T, e *Engine, h hello) net.Conn {
	t.Helper()
	c := dialRaw(t, e.Address())
	_, err := c.Write(h.encode())
	must(t, err)
	_, err = io.ReadFull(c, make([]byte, welcomeBytes))
	must(t, err)
	return c
}

// TestIdleConnectionsGiveWay checks that a silent peer that uses all connections does not keep
// other peers out.
func TestIdleConnectionsGiveWay(t *testing.T) {
	const most = 8
	target := engine(t, Options{Conns: most})
	_, err := target.Publish(t.Context(), "kv")
	must(t, err)
	id := share.NewIdentity()
	for i := range most {
		h := hello{purpose: forControl, from: id}
		if i%2 == 1 {
			h = hello{purpose: forData, from: id, to: target.Identity(), conn: uint64(i)}
		}
		greet(t, target, h)
	}
	other := engine(t, Options{})
	until(t, "a peer is kept out", func() bool {
		r, err := other.OpenSegment(t.Context(), target.Address()+"/kv")
		if err != nil {
			return false
		}
		must(t, r.Close())
		return true
	})
}

// TestQueuePairsLeaveSlots checks that queue pairs use at most half of the connections, because
// they never become idle.
func TestQueuePairsLeaveSlots(t *testing.T) {
	var s served
	s.init(&Options{Conns: 4, Stall: time.Second})
	for i := range 3 {
		c := &servedConn{cancel: func() {}}
		if !s.add(c) {
			t.Fatal("no slot")
		}
		if err := s.bind(c, new(Segment)); i < 2 {
			must(t, err)
		} else {
			wantErr(t, "the third of four", err, errdefs.ErrBusy)
		}
	}
}

// TestLargeRequestsWait checks that the memory of all requests in progress is limited, and that
// small requests overtake large ones that wait for memory.
func TestLargeRequestsWait(t *testing.T) {
	here := host(t, 4096)
	p := newPair(t, Options{Stall: time.Minute}, Options{}, host(t, 1<<20))
	p.do(t, Task{Op: Write, Local: mem.All(here)})
	before := p.target.Stats().Requests
	large := request{op: Write, id: 1, segment: p.remote.number, shape: shape{pages: make([]uint32, 16)}}
	for i := range maxPlanes {
		large.shape.planes = append(large.shape.planes, plane{base: int64(i) * 8, bytes: 1})
	}
	fit := requestsBytes / memoryOf(maxPlanes, 16)
	id := share.NewIdentity()
	var first net.Conn
	for i := range 2 * fit {
		c := greet(t, p.target, hello{purpose: forData, from: id, to: p.target.Identity(), conn: uint64(i)})
		if first == nil {
			first = c
		}
		go func() { _ = large.write(c) }() // its bytes never arrive
	}
	requests := func(n int64) func() bool { return func() bool { return p.target.Stats().Requests == before+n } }
	until(t, "not as many requests are read as the memory is for", requests(fit))
	p.do(t, Task{Op: Write, Local: mem.All(here)})
	if n := p.target.Stats().Requests - before; n != fit+1 {
		t.Fatalf("%d requests were read, want %d and a small one", n, fit)
	}
	must(t, first.Close())
	until(t, "a request that has ended keeps its memory", requests(fit+2))
}

// TestSlowPeerIsEnded checks that the engine closes the connection of a peer that sends a request
// too slowly.
func TestSlowPeerIsEnded(t *testing.T) {
	p := newPair(t, Options{Stall: 300 * time.Millisecond}, Options{}, host(t, 1<<20))
	c := greet(t, p.target, hello{purpose: forData, from: share.NewIdentity(), to: p.target.Identity(), conn: 1})
	q := request{op: Write, id: 1, segment: p.remote.number, shape: shape{planes: []plane{{0, 0, 1 << 20}}, pages: pageZero}}
	must(t, q.write(c))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for sent := 0; sent < wire.PaceBytes-1; sent++ { // less than the minimum before the limit
			if _, err := c.Write([]byte{1}); err != nil || !pause(t.Context(), 50*time.Millisecond) {
				return
			}
		}
	}()
	select {
	case <-ended:
	case <-time.After(patience):
		t.Error("the slow connection stays open")
	}
}

// TestRequestOfManyPieces checks that a request with more pieces than are listed at a time moves
// every byte.
func TestRequestOfManyPieces(t *testing.T) {
	const pieces, bytes, apart = listedPieces + 1000, 3, 8
	here, there := host(t, pieces*apart), host(t, pieces*apart)
	pattern(here.Bytes(), 3)
	p := newPair(t, Options{}, Options{}, there)
	for _, op := range []Op{Write, Read} {
		tasks := make([]Task, pieces)
		for i := range tasks {
			at := int64(i) * apart
			tasks[i] = Task{Op: op, Local: mem.Extent{Region: here, Off: at, Len: bytes}, Offset: at}
		}
		before := p.target.Stats().Requests
		p.do(t, tasks...)
		if n := p.target.Stats().Requests - before; n != 1 {
			t.Errorf("%s: %d requests", op, n)
		}
		for i := range pieces {
			at := i * apart
			if got, want := there.Bytes()[at:at+apart], here.Bytes()[at:at+bytes]; string(got[:bytes]) != string(want) || got[bytes] != 0 {
				t.Fatalf("%s: piece %d is %x, want %x", op, i, got, want)
			}
		}
		clear(here.Bytes()) // clear the memory and read the bytes back
	}
}

// TestLongCallIsRefused checks that a request longer than maxRequestPayload is refused.
func TestLongCallIsRefused(t *testing.T) {
	e := engine(t, Options{})
	c := greet(t, e, hello{purpose: forControl, from: share.NewIdentity()})
	b := binary.LittleEndian.AppendUint32(nil, maxRequestPayload+1)
	_, err := c.Write(append(b, byte(callFence), 0, 0, 0))
	must(t, err)
	until(t, "it is read", func() bool { return e.Stats().Malformed == 1 })
}
