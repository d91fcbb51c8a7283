package rpc_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/snappy"
	"google.golang.org/protobuf/proto"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/rpc"
	"github.com/kvlane/kvlane/rpc/chain"
	"github.com/kvlane/kvlane/rpc/echo"
	"github.com/kvlane/kvlane/rpc/internal/frame"
	"github.com/kvlane/kvlane/rpc/internal/pb"
	"github.com/kvlane/kvlane/wire"
)

// heapBytes returns the memory of live objects.
func heapBytes() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// requestID reads a request and returns its correlation id.
func requestID(conn net.Conn) (int64, error) {
	f, err := readFrame(conn)
	return f.reply.meta.GetCorrelationId(), err
}

// response returns a hand-made response to the call with an id.
func response(id int64, message []byte, meta ...byte) []byte {
	head := append(binary.AppendUvarint([]byte("\x12\x02\x08\x00\x20"), uint64(id)), meta...)
	b := binary.BigEndian.AppendUint32([]byte("PRPC"), uint32(len(head)+len(message)))
	b = binary.BigEndian.AppendUint32(b, uint32(len(head)))
	return append(append(b, head...), message...)
}

// padded returns a message of n bytes, with an unknown field.
func padded(n int) []byte {
	rest := n - len(hello) - 3
	return append(append(bytes.Clone(hello), 0x12, byte(rest&0x7f|0x80), byte(rest>>7)), make([]byte, rest)...)
}

// TestHostileServers makes calls of servers that send malformed or large responses. The call fails,
// and the memory of the client is bounded.
func TestHostileServers(t *testing.T) {
	negative := binary.AppendUvarint([]byte{0x28}, 1<<64-1)
	for name, c := range map[string]struct {
		send   func(id int64) []byte
		code   rpc.Code
		cause  error
		closed bool // the connection is not used any more
	}{
		"body at the limit": {func(id int64) []byte {
			return response(id, padded(1003-6))
		}, rpc.OK, nil, false},
		"body over the limit": {func(id int64) []byte {
			return response(id, padded(1003-6+1))
		}, rpc.FailedSocket, errdefs.ErrNoSpace, true},
		"meta over the limit":      {func(id int64) []byte { return response(id, hello, append([]byte{0x3a, 100}, make([]byte, 100)...)...) }, rpc.FailedSocket, errdefs.ErrNoSpace, true},
		"attachment over the body": {func(id int64) []byte { return response(id, hello, 0x28, 8) }, rpc.BadResponse, nil, false},
		"negative attachment":      {func(id int64) []byte { return response(id, hello, negative...) }, rpc.BadResponse, nil, false},
		"decompressed over the limit": {func(id int64) []byte {
			return response(id, snappy.Encode(nil, append([]byte("\x0a\xd0\x0f"), make([]byte, 2000)...)), 0x18, 1)
		}, rpc.BadResponse, errdefs.ErrNoSpace, false},
		"unknown compression": {func(id int64) []byte { return response(id, hello, 0x18, 9) }, rpc.BadResponse, errdefs.ErrNotSupported, false},
		"malformed meta":      {func(id int64) []byte { return response(id, hello, 0xff) }, rpc.FailedSocket, errdefs.ErrInvalid, true},
		"malformed message":   {func(id int64) []byte { return response(id, []byte("\x0a\x06hello")) }, rpc.BadResponse, nil, false},
		"another magic":       {func(int64) []byte { return []byte("HTTP/1.1 400 Bad Request\r\n\r\n") }, rpc.FailedSocket, errdefs.ErrMismatch, true},
		"unknown call":        {func(id int64) []byte { return append(response(id+1, make([]byte, 500)), response(id, hello)...) }, rpc.OK, nil, false},
		"two responses":       {func(id int64) []byte { return append(response(id, hello), response(id, hello)...) }, rpc.OK, nil, false},
		"half a header":       {func(int64) []byte { return []byte("PRPC\x00") }, rpc.FailedSocket, nil, true},
		"half a body":         {func(id int64) []byte { return response(id, hello)[:20] }, rpc.FailedSocket, nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			ended := make(chan error, 1)
			go func() {
				ended <- func() error {
					conn, err := l.Accept()
					if err != nil {
						return err
					}
					defer func() { _ = conn.Close() }() // the client may have closed it
					id, err := requestID(conn)
					if err == nil {
						_, err = conn.Write(c.send(id))
					}
					if err == nil && !c.closed { // a second call on the same connection
						if id, err = requestID(conn); err == nil {
							_, err = conn.Write(response(id, hello))
						}
					}
					_, _ = conn.Read(make([]byte, 1)) // the client closes the connection
					return err
				}()
			}()
			o := rpc.ClientOptions{MaxBodyBytes: 1003, MaxMetaBytes: 50}
			if strings.HasPrefix(name, "half") {
				o.Stall = 200 * time.Millisecond
			}
			client := newClient(t, l.Addr().String(), o)
			_, err = echoCall(t.Context(), client, "first")
			if rpc.CodeOf(err) != c.code || c.cause != nil && !errors.Is(err, c.cause) {
				t.Errorf("%v, not code %d", err, c.code)
			}
			_ = l.Close() // no second connection
			if got, err := echoCall(t.Context(), client, "second"); c.closed != (err != nil) || err == nil && got != "hello" {
				t.Errorf("the next call: %q, %v", got, err)
			}
			if err := client.Close(); err != nil {
				t.Error(err)
			}
			if err := <-ended; err != nil {
				t.Error(err)
			}
		})
	}
}

// closeWrite closes this side of a connection.
func closeWrite(conn net.Conn) error {
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		return fmt.Errorf("%T: %w", conn, errdefs.ErrInvalid)
	}
	return tcp.CloseWrite()
}

// TestServerThatClosesItsSide gets no response: the server half-closes the connection.
func TestServerThatClosesItsSide(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		ended <- func() error {
			conn, err := l.Accept()
			if err != nil {
				return err
			}
			defer func() { _ = conn.Close() }() // the client may have closed it
			if _, err = requestID(conn); err == nil {
				err = closeWrite(conn)
			}
			_, _ = io.Copy(io.Discard, conn) // until the client closes its side too
			return errors.Join(err, l.Close())
		}()
	}()
	client := newClient(t, l.Addr().String(), rpc.ClientOptions{})
	if _, err := echoCall(t.Context(), client, "hello"); rpc.CodeOf(err) != rpc.EndOfFile {
		t.Error(err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestServerThatDoesNotRead makes calls whose requests are not read. When too many bytes wait, calls
// fail, and after a while the connection ends. The memory is bounded.
func TestServerThatDoesNotRead(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }() // the test has ended
	const limit = 4 << 20
	client := newClient(t, l.Addr().String(), rpc.ClientOptions{MaxUnsentBytes: limit, Stall: 2 * time.Second})
	before, most, refused := heapBytes(), int64(0), 0
	for end := time.Now().Add(testkit.Patience()); refused < 5 && time.Now().Before(end); {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		_, err := echoCall(ctx, client, string(make([]byte, 1<<20)))
		cancel()
		switch rpc.CodeOf(err) {
		case rpc.TimedOut:
		case rpc.Overcrowded:
			if !errors.Is(err, rpc.ErrNotSent) || !strings.Contains(err.Error(), "more than 4194304 bytes wait") {
				t.Error(err)
			}
			refused++
			most = max(most, heapBytes()-before)
		case rpc.FailedSocket:
			if !errors.Is(err, os.ErrDeadlineExceeded) { // a busy machine: the client uses another connection
				t.Fatal(err)
			}
		default:
			t.Fatal(err)
		}
	}
	t.Logf("%d calls refused, %d bytes of memory", refused, most)
	if refused < 5 || most > 4*limit {
		t.Errorf("%d calls were refused, with %d bytes of memory for a limit of %d", refused, most, limit)
	}
	waitFor(t, func() bool { // until the client uses another connection
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
		defer cancel()
		_, err := echoCall(ctx, client, "hello")
		return rpc.CodeOf(err) == rpc.TimedOut
	})
}

// TestCallsEndAlsoIfTheirRequestIsNotRead fills the socket of a server that does not read, by small
// requests one after another. No call waits longer than its context for the server.
func TestCallsEndAlsoIfTheirRequestIsNotRead(t *testing.T) {
	l := listen(t, "tcp", "127.0.0.1:0")
	defer func() { must(t, l.Close()) }()
	client := newClient(t, l.Addr().String(), rpc.ClientOptions{Stall: 20 * time.Second})
	for i := range 300 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		began := time.Now()
		_, err := echoCall(ctx, client, string(make([]byte, 60<<10)))
		cancel()
		if took := time.Since(began); rpc.CodeOf(err) != rpc.TimedOut || took > 10*time.Second {
			t.Fatalf("call %d: %v after %v", i, err, took)
		}
	}
}

// TestMemoryOfAClientThatDoesNotRead sends requests without reading responses. When too many bytes
// wait, the server refuses requests, and finally closes the connection. Its memory is bounded.
func TestMemoryOfAClientThatDoesNotRead(t *testing.T) {
	const limit, request1MiB = 4 << 20, 1 << 20
	s, addr := startServer(t, rpc.ServerOptions{MaxUnsentBytes: limit, Stall: time.Second})
	conn := dial(t, addr)
	wanted := request(append(bytes.Clone(hello), make([]byte, request1MiB)...), append([]byte{0x28}, binary.AppendUvarint(nil, request1MiB)...)...)
	before, most, sent := heapBytes(), int64(0), 0
	for ; sent < 256; sent++ {
		if _, err := conn.Write(wanted); err != nil {
			break // the server has closed the connection
		}
		if sent%16 == 0 {
			most = max(most, heapBytes()-before)
		}
	}
	t.Logf("%d MiB sent, %d bytes of memory, %+v", sent, most, s.Stats())
	if most > 16*limit || s.Stats().Rejected == 0 {
		t.Errorf("%d bytes of memory for a limit of %d, %+v", most, limit, s.Stats())
	}
	waitFor(t, func() bool { return s.Stats().Connections == 0 && s.Stats().Broken == 1 })
}

// TestSlowReader reads a response in longer than Stall, at a rate that the server must accept.
func TestSlowReader(t *testing.T) {
	const n, stall = 16 << 20, time.Second
	_, addr := startServer(t, rpc.ServerOptions{Stall: stall})
	conn := dial(t, addr)
	if tcp, ok := conn.(*net.TCPConn); !ok || tcp.SetReadBuffer(64<<10) != nil {
		t.Fatal("the buffer has no limit")
	}
	if _, err := conn.Write(request(append(bytes.Clone(hello), make([]byte, n)...), append([]byte{0x28}, binary.AppendUvarint(nil, n)...)...)); err != nil {
		t.Fatal(err)
	}
	began, got, buf := time.Now(), 0, make([]byte, 128<<10)
	for got < n {
		k, err := io.ReadFull(conn, buf)
		if got += k; err != nil {
			t.Fatalf("after %d bytes and %v: %v", got, time.Since(began), err)
		}
		time.Sleep(17 * time.Millisecond)
	}
	if d := time.Since(began); d < 2*stall {
		t.Errorf("read in %v: too fast to show anything", d)
	}
}

// TestAttachmentLimits sends attachments at and over the limit of the body.
func TestAttachmentLimits(t *testing.T) {
	s, addr := startServer(t, rpc.ServerOptions{MaxBodyBytes: 10_000})
	client := newClient(t, addr, rpc.ClientOptions{})
	for n, want := range map[int]rpc.Code{9_900: rpc.OK, 10_000: rpc.EndOfFile} {
		got := new(chain.Chain)
		_, err := echoCall(t.Context(), client, "attached", rpc.WithAttachment(chain.OfBytes(make([]byte, n))), rpc.ReceiveAttachment(got))
		if code := rpc.CodeOf(err); code != want && (want == rpc.OK || code != rpc.FailedSocket) || err == nil && got.Len() != int64(n) {
			t.Errorf("%d bytes: %d, %v", n, got.Len(), err)
		}
		got.Release()
	}
	waitFor(t, func() bool { return s.Stats().Broken == 1 })
}

// TestMemoryOfUserFields has calls in progress with as many user fields as a meta may have.
func TestMemoryOfUserFields(t *testing.T) {
	testkit.SkipRace(t, "it decodes 24 MiB on one connection")
	block := make(chan struct{})
	s, addr := serve(t, rpc.ServerOptions{MemoryBytes: 16 << 20, MaxBodyBytes: 8 << 20, Stall: 200 * time.Millisecond}, echo.NewEchoService(echoFunc(func(context.Context, *echo.EchoRequest) (*echo.EchoResponse, error) {
		<-block
		return &echo.EchoResponse{Message: proto.String("")}, nil
	})))
	var meta []byte
	for i := 0; len(meta) < 1<<20-100; i++ {
		key := fmt.Sprintf("%x", i)
		meta = append(append(meta, 0x4a, byte(2+len(key)), 0x0a, byte(len(key))), key...)
	}
	wanted := request(hello, meta...)
	before := heapBytes()
	conn := dial(t, addr)
	for range 24 {
		if _, err := conn.Write(wanted); err != nil {
			break // the server has waited for memory in vain
		}
	}
	used := heapBytes() - before
	t.Logf("%+v, %d bytes of memory", s.Stats(), used)
	if used > 64<<20 || s.Stats().Requests < 2 {
		t.Errorf("%d bytes of memory, %+v", used, s.Stats())
	}
	close(block)
}

// TestConnectionLimit opens a connection too many. It is refused while all others were used a moment
// ago, and later takes the place of the one that has been idle longest.
func TestConnectionLimit(t *testing.T) {
	var s *rpc.Server
	var addr string
	var conns []net.Conn
	for end := time.Now().Add(testkit.Patience()); ; {
		s, addr = startServer(t, rpc.ServerOptions{MaxConnections: 2})
		conns = nil
		began := time.Now()
		for range 2 {
			conns = append(conns, dial(t, addr))
			if _, err := conns[len(conns)-1].Write(request(hello)); err != nil || nextReply(t, conns[len(conns)-1]).meta.GetResponse().GetErrorCode() != 0 {
				t.Fatal(err)
			}
			time.Sleep(50 * time.Millisecond) // until the server counts the connection as idle
		}
		if isRefused(dial(t, addr)) {
			break
		}
		if d := time.Since(began); d < wire.Grace || time.Now().After(end) {
			t.Fatalf("a third connection is open after %v", d)
		}
	}
	time.Sleep(wire.Grace + 100*time.Millisecond)
	third := dial(t, addr)
	if _, err := third.Write(request(hello)); err != nil || nextReply(t, third).meta.GetResponse().GetErrorCode() != 0 {
		t.Fatal(err)
	}
	if !isClosed(t, conns[0]) || !staysOpen(t, conns[1]) || s.Stats().Connections != 2 {
		t.Errorf("%+v", s.Stats())
	}
}

// streamFrame returns a frame of a stream.
func streamFrame(t *testing.T, m *pb.StreamFrame, data []byte) []byte {
	t.Helper()
	b, err := proto.MarshalOptions{}.MarshalAppend(make([]byte, frame.HeaderBytes), m)
	if err != nil {
		t.Fatal(err)
	}
	n := int64(len(b)) - frame.HeaderBytes
	if err := (frame.Header{Kind: frame.Stream, Body: n + int64(len(data)), Meta: n}).Put(b); err != nil {
		t.Fatal(err)
	}
	return append(b, data...)
}

// TestStreamFloods sends messages without regard to the window, to a program that does not receive
// them. The server resets the stream, and the memory is bounded.
func TestStreamFloods(t *testing.T) {
	const limit = 4 << 20
	chunks := 8
	if testkit.Race {
		chunks = 2
	}
	for name, n := range map[string]int{"long messages": 64 << 10, "empty messages": 0, "short messages": 1, "short pieces": 2} {
		accepted := make(chan *rpc.Stream, 1)
		s, addr := serve(t, rpc.ServerOptions{MaxBodyBytes: limit}, echo.NewEchoService(echoFunc(func(ctx context.Context, _ *echo.EchoRequest) (*echo.EchoResponse, error) {
			list, err := rpc.FromContext(ctx).AcceptStreams(rpc.StreamOptions{})
			if err == nil {
				accepted <- list[0]
			}
			return &echo.EchoResponse{Message: proto.String("")}, err
		})))
		conn := dial(t, addr)
		if _, err := conn.Write(request(hello, 0x42, 4, 0x08, 7, 0x10, 1)); err != nil {
			t.Fatal(err)
		}
		id, before, data := next(t, conn).stream.GetSourceStreamId(), heapBytes(), make([]byte, n)
		chunk := bytes.Repeat(streamFrame(t, &pb.StreamFrame{StreamId: &id, FrameType: proto.Int32(3), HasContinuation: proto.Bool(n == 2)}, data), 4<<20/(n+50))
		for range chunks {
			if _, err := conn.Write(chunk); err != nil {
				t.Fatal(err)
			}
		}
		if err := conn.SetReadDeadline(time.Now().Add(testkit.Patience())); err != nil {
			t.Fatal(err)
		}
		if f := next(t, conn); f.stream.GetFrameType() != 1 { // RST
			t.Errorf("%s: %v", name, f)
		}
		if used := heapBytes() - before; used > 3*limit {
			t.Errorf("%s: %d bytes of memory for a limit of %d", name, used, limit)
		}
		if err := (<-accepted).Close(); err != nil {
			t.Error(err)
		}
		if _, err := conn.Write(request(hello)); err != nil || s.Stats().Broken != 0 { // the connection goes on
			t.Errorf("%s: %v, %+v", name, err, s.Stats())
		}
	}
}

// TestTooManyStreams requests more streams than a connection may have.
func TestTooManyStreams(t *testing.T) {
	addr, _ := acceptServer(t)
	conn := dial(t, addr)
	settings := &pb.StreamSettings{StreamId: proto.Int64(0)}
	for i := range int64(1024) {
		settings.ExtraStreamIds = append(settings.ExtraStreamIds, i+1)
	}
	b, err := proto.Marshal(settings)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // the streams of the first request were ended
		if _, err := conn.Write(request(hello, append(binary.AppendUvarint([]byte{0x42}, uint64(len(b))), b...)...)); err != nil {
			t.Fatal(err)
		}
		if r := next(t, conn).reply.meta.GetResponse(); rpc.Code(r.GetErrorCode()) != rpc.LimitReached || !strings.Contains(r.GetErrorText(), "more than 1024 streams") {
			t.Error(r)
		}
	}
}
