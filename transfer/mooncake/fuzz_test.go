package mooncake

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/transfer"
	"github.com/kvlane/kvlane/wire"
)

// FuzzParseSegment checks that every accepted description is valid and is accepted again after
// encoding. Any other input must return ErrInvalid.
func FuzzParseSegment(f *testing.F) {
	f.Add([]byte(`{"buffers":[{"addr":140049588944896,"length":100663296,"name":"cpu:0"}],"name":"a:1","protocol":"tcp","tcp_data_port":16821,"tcp_proto_version":2}`))
	f.Add([]byte(`{"name":"a","buffers":[{"name":"b","addr":18446744073709551615,"length":1}]}`))
	f.Add([]byte("{}"))
	f.Fuzz(func(t *testing.T, text []byte) {
		s, err := ParseSegment(text)
		if err != nil {
			if !errors.Is(err, errdefs.ErrInvalid) {
				t.Fatal(err)
			}
			return
		}
		for _, b := range s.Buffers {
			if b.Addr+b.Length < b.Addr || !s.holds(b.Addr, b.Length) || s.holds(b.Addr+b.Length-1, ^uint64(0)) {
				t.Fatalf("%+v", b)
			}
		}
		_ = s.dataAddr()
	})
}

// fakeConn is a connection whose peer has already sent all of its bytes.
type fakeConn struct {
	in  io.Reader
	out bytes.Buffer
}

func (w *fakeConn) Read(p []byte) (int, error)       { return w.in.Read(p) }
func (w *fakeConn) Write(p []byte) (int, error)      { return w.out.Write(p) }
func (w *fakeConn) Close() error                     { return nil }
func (w *fakeConn) LocalAddr() net.Addr              { return nil }
func (w *fakeConn) RemoteAddr() net.Addr             { return nil }
func (w *fakeConn) SetDeadline(time.Time) error      { return nil }
func (w *fakeConn) SetReadDeadline(time.Time) error  { return nil }
func (w *fakeConn) SetWriteDeadline(time.Time) error { return nil }

// testServer returns a server without sockets. It offers b at address base, without edge bytes at
// each end.
func testServer(b []byte, base uint64, edge int) *Server {
	in := b[edge : len(b)-edge]
	r, err := mem.NewRegion(mem.RegionSpec{Kind: mem.KindHost, Device: mem.NoDevice, Len: int64(len(in)), CPU: mem.CPUAddr(base), Bytes: in})
	if err != nil {
		panic(err)
	}
	m := NewRegions(nil)
	if err := m.Add("cpu:0", r); err != nil {
		panic(err)
	}
	s := &Server{o: ServerOptions{Name: "a:1", Memory: m, OnNotify: func(context.Context, Notification) error { return nil }}, ctx: context.Background(), budget: wire.NewBudget(requestsBytes, smallBytes, handshakeTime), host: "a", port: 1}
	s.o.setDefaults()
	return s
}

// FuzzHandshake checks that the server answers with at most one frame of the same kind, or counts
// the request as malformed.
func FuzzHandshake(f *testing.F) {
	f.Add([]byte("\x03\x00\x00\x00\x00\x00\x00\x00\x01{}"))
	f.Add([]byte("\x03\x00\x00\x00\x00\x00\x00\x00\x00{}"))
	f.Add([]byte("\x02\x00\x00\x00\x00\x00\x00\x00\x02{}{}{}"))
	f.Add([]byte("\xff\xff\xff\xff\xff\xff\xff\xff\x03"))
	f.Fuzz(func(t *testing.T, said []byte) {
		s, w := testServer(make([]byte, 64), 1<<20, 0), &fakeConn{in: bytes.NewReader(said)}
		s.handshake(w, new(wire.Slot))
		if w.out.Len() == 0 {
			if s.Stats().Malformed != 1 {
				t.Fatal("dropped and not counted")
			}
			return
		}
		kind, body, err := readFrame(&w.out)
		if err != nil || kind != said[8] || len(body) == 0 || w.out.Len() != 0 {
			t.Fatalf("kind %d, %q, %d bytes more, %v", kind, body, w.out.Len(), err)
		}
	})
}

// FuzzSession checks that memory outside the registered part does not change. Answers may contain
// only bytes of that part, and no more than requested.
func FuzzSession(f *testing.F) {
	const base, edge, size = 1 << 20, 64, 256
	h := func(h header) string { return string(h.append(nil)) }
	f.Add([]byte(h(header{length: 4, addr: base, op: transfer.Read, v2: true}) + h(header{length: 3, addr: base + 1, op: transfer.Write, v2: true}) + "abc"))
	f.Add([]byte(h(header{length: size, addr: base, op: transfer.Read}) + h(header{length: size + 1, addr: base, op: transfer.Write}) + strings.Repeat("x", size+1)))
	f.Add([]byte(h(header{length: ^uint64(0) - base + 2, addr: base, op: transfer.Write, v2: true})))
	f.Add([]byte(h(header{length: 2, addr: base - 1, op: transfer.Read})))
	f.Fuzz(func(t *testing.T, said []byte) {
		b := make([]byte, size+2*edge)
		for i := range b {
			b[i] = 0xa5
		}
		s, w := testServer(b, base, edge), &fakeConn{in: bytes.NewReader(said)}
		s.session(w, new(wire.Slot))
		for i := range edge {
			if b[i] != 0xa5 || b[len(b)-1-i] != 0xa5 {
				t.Fatal("bytes beside the registered memory were written")
			}
		}
		st := s.Stats()
		requests := uint64(len(said)) / headerBytes
		if got := st.Reads + st.Writes + st.Rejected + st.Failed; got > requests {
			t.Fatalf("%d requests were carried out of at most %d", got, requests)
		}
		if most := st.ReadBytes + statusBytes*requests; uint64(w.out.Len()) > most {
			t.Fatalf("the answer has %d bytes, want at most %d", w.out.Len(), most)
		}
	})
}

// FuzzAnswers checks that a Remote stores no more bytes than it requested, and completes a task
// only if all of them arrived.
func FuzzAnswers(f *testing.F) {
	ok := binary.LittleEndian.AppendUint64(nil, statusOK)
	f.Add(append(ok, "12345678"...))
	f.Add(append(ok, "1234"...))
	f.Add(binary.LittleEndian.AppendUint64(nil, statusRejected))
	f.Add([]byte{1, 2, 3})
	f.Fuzz(func(t *testing.T, said []byte) {
		b := make([]byte, 16)
		s := testServer(b, 1<<20, 4)
		r := &Remote{o: Options{Memory: s.o.Memory, StallTime: time.Second}, name: "x", ctx: context.Background(), segment: new(Segment)}
		r.changed.L = &r.mu
		batch := &Batch{ctx: context.Background(), r: r, done: make(chan struct{}), tasks: make([]taskState, 1), stop: func() bool { return true }}
		batch.left.Store(1)
		batch.tasks[0].parts.Store(1)
		p := &part{b: batch, Task: Task{Op: transfer.Read, Local: 1 << 20, Remote: 1 << 20, Length: 8}, sent: true}
		w := &fakeConn{in: bytes.NewReader(said)}
		l := &lane{r: r, conn: w, inFlight: []*part{p}, bytes: 8}
		l.fail(l.receive(newFlow(w, time.Second), true))
		l.finishConn()
		whole := len(said) >= 16 && binary.LittleEndian.Uint64(said) == statusOK
		if (batch.Status(0) == transfer.StatusCompleted) != whole {
			t.Fatalf("%s after %d bytes", batch.Status(0), len(said))
		}
		if !bytes.Equal(b[:4], make([]byte, 4)) || !bytes.Equal(b[12:], make([]byte, 4)) {
			t.Fatal("bytes beside the task's memory were written")
		}
	})
}
