package rpc

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/kvlane/kvlane/rpc/chain"
	"github.com/kvlane/kvlane/rpc/internal/frame"
	"github.com/kvlane/kvlane/rpc/internal/golden"
	"github.com/kvlane/kvlane/rpc/internal/pb"
)

// script is a connection whose peer has sent fixed bytes and closed its side. It keeps the bytes
// that are written.
type script struct {
	net.Conn
	in *bytes.Reader

	mu  sync.Mutex
	out bytes.Buffer
}

func (s *script) Read(p []byte) (int, error) { return s.in.Read(p) }
func (s *script) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.out.Write(p)
}
func (s *script) Close() error                       { return nil }
func (s *script) SetReadDeadline(_ time.Time) error  { return nil }
func (s *script) SetWriteDeadline(_ time.Time) error { return nil }
func (s *script) LocalAddr() net.Addr                { return new(net.TCPAddr) }
func (s *script) RemoteAddr() net.Addr               { return new(net.TCPAddr) }

// written returns the number of whole frames that were written.
func (s *script) written(t *testing.T) (n int) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	for b := s.out.Bytes(); len(b) >= frame.HeaderBytes; n++ {
		h, err := frame.Parse(b)
		if err != nil {
			t.Fatal(err)
		}
		if b = b[frame.HeaderBytes:]; int64(len(b)) < h.Body {
			break // the rest was not written yet
		}
		b = b[h.Body:]
	}
	return n
}

// addCaptures adds the captured bytes of one direction to the seeds.
func addCaptures(f *testing.F, toServer bool) {
	f.Helper()
	for _, c := range golden.Load(f, "testdata/golden", "testdata/peers/rpc-to-brpc", "testdata/peers/brpc-to-rpc") {
		for _, d := range c.Directions {
			if d.ToServer == toServer && len(d.Bytes) < 1<<12 {
				f.Add(d.Bytes)
			}
		}
	}
}

// FuzzServer gives any bytes to a server. It must answer each request with one frame, and release
// all calls and streams when the connection ends.
func FuzzServer(f *testing.F) {
	addCaptures(f, true)
	s, err := NewServer(ServerOptions{MaxBodyBytes: 1 << 16, MaxMetaBytes: 1 << 10, MemoryBytes: 1 << 20, Stall: 10 * time.Second})
	if err != nil {
		f.Fatal(err)
	}
	var group sync.WaitGroup // goroutines of handlers
	handle := func(ctx context.Context, in *wrapperspb.StringValue) (*wrapperspb.StringValue, error) {
		call := FromContext(ctx)
		call.Reply.Attachment = call.Attachment.Cut(call.Attachment.Len())
		call.Reply.Fields = call.Fields
		if !call.WantsStreams() {
			return in, nil
		}
		list, err := call.AcceptStreams(StreamOptions{})
		for _, st := range list {
			group.Go(func() { echoStream(st) })
		}
		return in, err
	}
	if err := s.Register(&Service{Name: "example.EchoService", Methods: []Method{NewMethod("Echo", handle)}}); err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = s.Close() }) // it has no listener
	f.Fuzz(func(t *testing.T, b []byte) {
		before := s.Stats().Requests
		conn := &script{in: bytes.NewReader(b)}
		s.accept(conn)
		s.group.Wait()
		group.Wait()
		if got := s.Stats(); got.Connections != 0 || got.Calls != 0 {
			t.Fatalf("%+v", got)
		}
		if n, requests := int64(conn.written(t)), s.Stats().Requests-before; n < requests-1 { // the last one may be incomplete
			t.Fatalf("%d frames for %d requests", n, requests)
		}
		release, err := s.budget.Take(t.Context(), 1<<20)
		if err != nil {
			t.Fatalf("memory is still reserved: %v", err)
		}
		release()
	})
}

// echoStream sends the messages of a stream back.
func echoStream(s *Stream) {
	for {
		m, err := s.Receive(context.Background())
		if err != nil {
			break
		}
		if err := s.Send(context.Background(), m); err != nil {
			break
		}
	}
	_ = s.Close() // the connection may have ended
}

// FuzzClient gives any bytes to a client with a call and a call that opens a stream. Both calls and
// the stream must end with the connection.
func FuzzClient(f *testing.F) {
	addCaptures(f, false)
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := NewClient("127.0.0.1:1", ClientOptions{MaxBodyBytes: 1 << 16, MaxMetaBytes: 1 << 10, Stall: 10 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		conn := newClientConn(c, &script{in: bytes.NewReader(b)})
		st, err := conn.streams.open(StreamOptions{MaxBuffered: 1})
		if err != nil {
			t.Fatal(err)
		}
		st.respond = conn.respondInStream
		var requests []*Request
		var pending []*pendingCall
		for i := range 2 {
			r, err := NewRequest("example.EchoService/Echo", wrapperspb.String("hello"))
			if err != nil {
				t.Fatal(err)
			}
			if i == 1 {
				r.o.streams = []*Stream{st}
			}
			p, err := conn.start(t.Context(), r)
			if err != nil {
				t.Fatal(err)
			}
			requests, pending = append(requests, r), append(pending, p)
		}
		c.group.Add(1)
		conn.run()
		for i, p := range pending {
			if err := conn.await(t.Context(), p); err == nil {
				_ = Response{p, requests[i], 1 << 16}.Decode(new(wrapperspb.StringValue)) // any outcome
			} else if e := (*Error)(nil); !errors.As(callError(t.Context(), err), &e) {
				t.Errorf("%v has no code", err)
			}
			requests[i].Release()
		}
		for err == nil {
			var m *chain.Chain
			if m, err = st.Receive(t.Context()); err == nil {
				m.Release()
			}
		}
		if err := st.Send(t.Context(), chain.OfBytes([]byte("x"))); CodeOf(err) != Closed {
			t.Errorf("the stream is open after the end of its connection: %v", err)
		}
		if n := len(conn.streams.live); n > 0 || conn.streams.queued != 0 {
			t.Errorf("%d streams and %d bytes are left", n, conn.streams.queued)
		}
	})
}

// FuzzStream gives any frames to a connection with an open stream: pairs of a meta and data. The
// counted bytes are those that can be received.
func FuzzStream(f *testing.F) {
	number := func(n int64) *int64 { return &n }
	kind := func(n int32) *int32 { return &n }
	for _, m := range []*pb.StreamFrame{
		{},
		{StreamId: number(0), SourceStreamId: number(9), FrameType: kind(frameData), HasContinuation: proto.Bool(true)},
		{StreamId: number(0), FrameType: kind(frameFeedback), Feedback: &pb.Feedback{ConsumedSize: number(-5)}},
		{StreamId: number(0), FrameType: kind(frameFeedback), Feedback: &pb.Feedback{ConsumedSize: number(5)}},
		{StreamId: number(0), FrameType: kind(frameClose), SourceStreamId: number(9)},
		{StreamId: number(0), FrameType: kind(frameReset)},
		{StreamId: number(7), SourceStreamId: number(1), FrameType: kind(frameData)},
	} {
		b, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		data := []byte("\x08\x00\x10\x09\x18\x03\x20\x00")
		f.Add(b, []byte("data"), data, []byte("more"), int64(9), true, true)
		f.Add(data, []byte("data"), b, []byte(""), int64(-1), false, false)
	}
	f.Fuzz(func(t *testing.T, meta1, data1, meta2, data2 []byte, peer int64, writable, feedback bool) {
		var in []byte
		for _, p := range [][2][]byte{{meta1, data1}, {meta2, data2}} {
			b := make([]byte, frame.HeaderBytes)
			if err := (frame.Header{Kind: frame.Stream, Body: int64(len(p[0]) + len(p[1])), Meta: int64(len(p[0]))}).Put(b); err != nil {
				t.Fatal(err)
			}
			in = append(append(append(in, b...), p[0]...), p[1]...)
		}
		conn := &script{in: bytes.NewReader(in)}
		table := newStreamTable(newWriter(conn, 10*time.Second, 1<<20), 1000)
		s, err := table.open(StreamOptions{})
		if err != nil {
			t.Fatal(err)
		}
		s.opened(peer, &pb.StreamSettings{StreamId: &peer, Writable: &writable, NeedFeedback: &feedback})
		r := frame.NewReader(conn, frame.Limits{Body: 1 << 16, Meta: 1 << 10, Stall: 10 * time.Second})
		for err == nil {
			var b []byte
			if _, b, err = r.Next(); err == nil {
				err = table.read(r, b)
			}
			if s.sent < s.consumed || table.queued > 1000+pieceBytes {
				t.Fatalf("%d bytes consumed of %d sent, %d queued", s.consumed, s.sent, table.queued)
			}
		}
		table.close(io.EOF)
		for {
			m, err := s.Receive(t.Context())
			if err != nil {
				break
			}
			m.Release()
		}
		if table.queued != 0 || len(table.live) != 0 {
			t.Fatalf("%d bytes and %d streams are left", table.queued, len(table.live))
		}
		conn.written(t)
	})
}

// FuzzDecompress checks that no input yields more than the limit, and that compressed bytes are
// restored.
func FuzzDecompress(f *testing.F) {
	for c := NoCompression; c <= Zlib; c++ {
		b, err := compress(bytes.Repeat([]byte("seed"), 100), c)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b, int32(c))
	}
	f.Fuzz(func(t *testing.T, b []byte, c int32) {
		const limit = 1 << 12
		if out, err := decompress(b, Compression(c), limit); err == nil && len(out) > limit && Compression(c) != NoCompression {
			t.Fatalf("%d bytes", len(out))
		}
		packed, err := compress(b, Compression(c))
		if err != nil {
			return // an unknown compression
		}
		if out, err := decompress(packed, Compression(c), int64(len(b))); err != nil || !bytes.Equal(out, b) {
			t.Fatalf("%d bytes of %d, %v", len(out), len(b), err)
		}
	})
}

// FuzzDecode gives any message to the decoders of all contents.
func FuzzDecode(f *testing.F) {
	for c := Protobuf; c <= Text; c++ {
		b, err := encode(&pb.Meta{ChecksumValue: []byte("sum"), UserFields: map[string]string{"a": "b"}}, c, NoCompression)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b.bytes, int32(c))
	}
	f.Fuzz(func(t *testing.T, b []byte, c int32) {
		m, again := new(pb.Meta), new(pb.Meta)
		if err := decode(b, m, Content(c), NoCompression, 1<<12); err != nil {
			return
		}
		out, err := encode(m, Content(c), NoCompression)
		if err != nil {
			return // text that JSON cannot have
		}
		if err := decode(out.bytes, again, Content(c), NoCompression, 1<<20); err != nil || !proto.Equal(m, again) {
			t.Fatalf("%v: %v, not %v", err, again, m)
		}
	})
}
