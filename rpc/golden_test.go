package rpc_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/kvlane/kvlane/device/cuda/cudatest"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/rpc"
	"github.com/kvlane/kvlane/rpc/echo"
	"github.com/kvlane/kvlane/rpc/internal/frame"
	"github.com/kvlane/kvlane/rpc/internal/golden"
	"github.com/kvlane/kvlane/rpc/internal/pb"
)

func TestMain(m *testing.M) {
	cudatest.UseDriverOnce()
	testkit.Main(m)
}

const sleep = 150 * time.Millisecond

// capturedEcho is the handler of the captured server: the message selects its behaviour.
func capturedEcho(ctx context.Context, m proto.Message) (proto.Message, error) {
	in, ok := m.(*echo.EchoRequest)
	if !ok {
		return nil, fmt.Errorf("a request of type %T", m)
	}
	call, text := rpc.FromContext(ctx), in.GetMessage()
	r := &call.Reply
	if call.WantsStreams() {
		if err := acceptCaptured(call, text); err != nil {
			return nil, err
		}
	}
	switch {
	case strings.HasPrefix(text, "ERR"):
		code, err := strconv.Atoi(text[3:])
		if err != nil || code == -1 {
			return nil, errors.New("general failure")
		}
		return nil, rpc.Errorf(rpc.Code(code), "told to") // the text of the captured server
	case text == "CLOSE":
		call.CloseConnection()
		return nil, nil
	case text == "UNSET":
		return &echo.EchoResponse{}, nil
	case text == "SLEEP":
		select {
		case <-time.After(sleep):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	case strings.HasPrefix(text, "snappy"):
		r.Compression = rpc.Snappy
	case strings.HasPrefix(text, "gzip"):
		r.Compression = rpc.Gzip
	case strings.HasPrefix(text, "zlib"):
		r.Compression = rpc.Zlib
	case strings.HasPrefix(text, "fields"):
		r.Fields = map[string]string{"answer": "42"}
	}
	if strings.Contains(text, "crcatt") {
		r.Checksum = rpc.CRC32CAll
	} else if strings.Contains(text, "crc") {
		r.Checksum = rpc.CRC32C
	}
	r.Attachment = call.Attachment.Cut(call.Attachment.Len())
	return &echo.EchoResponse{Message: proto.String(text)}, nil
}

// startServer serves the captured handler on loopback and returns the address.
func startServer(t *testing.T, o rpc.ServerOptions) (*rpc.Server, string) {
	t.Helper()
	v, err := rpc.NewService(echo.File_rpc_echo_echo_proto.Services().Get(0), map[string]rpc.Handler{"Echo": capturedEcho})
	if err != nil {
		t.Fatal(err)
	}
	return serve(t, o, v)
}

// serve serves services on loopback until the end of the test and returns the address.
func serve(t *testing.T, o rpc.ServerOptions, list ...*rpc.Service) (*rpc.Server, string) {
	t.Helper()
	return serveOn(t, listen(t, "tcp", "127.0.0.1:0"), o, list...)
}

// serveOn is serve on a listener.
func serveOn(t *testing.T, l net.Listener, o rpc.ServerOptions, list ...*rpc.Service) (*rpc.Server, string) {
	t.Helper()
	s, err := rpc.NewServer(o)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Register(list...); err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	t.Cleanup(func() {
		if err := errors.Join(s.Close(), <-served); err != nil {
			t.Error(err)
		}
	})
	return s, l.Addr().String()
}

// capturedOptions returns the options of a captured server.
func capturedOptions(c *golden.Capture) rpc.ServerOptions {
	var o rpc.ServerOptions
	if strings.Contains(c.Server, "-auth") {
		o.Authenticate = func(_ context.Context, credential []byte, _ net.Addr) (any, error) {
			if string(credential) != "kvlane-secret" {
				return nil, errors.New("wrong credential")
			}
			return "kvlane", nil
		}
	}
	return o
}

// reply is a decoded frame of a server.
type reply struct {
	meta *pb.Meta
	data []byte
}

// replies splits a byte stream into responses.
func replies(t *testing.T, b []byte) (out []reply) {
	t.Helper()
	for len(b) > 0 {
		h, err := frame.Parse(b)
		if err != nil || int64(len(b)) < frame.HeaderBytes+h.Body {
			t.Fatalf("%d bytes, %+v, %v", len(b), h, err)
		}
		r := reply{new(pb.Meta), b[frame.HeaderBytes+h.Meta : frame.HeaderBytes+h.Body]}
		if err := proto.Unmarshal(b[frame.HeaderBytes:frame.HeaderBytes+h.Meta], r.meta); err != nil {
			t.Fatal(err)
		}
		out = append(out, r)
		b = b[frame.HeaderBytes+h.Body:]
	}
	return out
}

var address = regexp.MustCompile(`^\[127\.0\.0\.1:\d+\]`)

// plain removes the server's address from the error text and decompresses the data.
func (r reply) plain(t *testing.T) reply {
	t.Helper()
	if e := r.meta.GetResponse(); e.GetErrorText() != "" {
		e.ErrorText = proto.String(address.ReplaceAllString(e.GetErrorText(), ""))
	}
	if c := r.meta.GetCompressType(); c != 0 {
		n := len(r.data) - int(r.meta.GetAttachmentSize())
		b, err := rpc.Decompress(r.data[:n], rpc.Compression(c), 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		r.data = append(b, r.data[n:]...)
		if r.meta.GetChecksumType() != 0 { // checksums of compressed bytes differ
			r.meta.ChecksumValue = nil
		}
	}
	return r
}

// staysOpen reports whether the connection stays open for a moment. It fails the test if a byte
// arrives.
func staysOpen(t *testing.T, conn net.Conn) bool {
	t.Helper()
	return opensFor(t, conn, 30*time.Millisecond)
}

// isClosed reports whether the server closes the connection. It fails the test if a byte arrives.
func isClosed(t *testing.T, conn net.Conn) bool {
	t.Helper()
	return !opensFor(t, conn, testkit.Patience())
}

// isRefused reports whether the server closes a new connection instead of answering a request.
func isRefused(conn net.Conn) bool {
	_, _ = conn.Write(request(hello)) // fails if it is closed
	_, err := conn.Read(make([]byte, 1))
	return err != nil
}

func opensFor(t *testing.T, conn net.Conn, d time.Duration) bool {
	t.Helper()
	_ = conn.SetReadDeadline(time.Now().Add(d))
	n, err := conn.Read(make([]byte, 100))
	if n > 0 {
		t.Fatalf("%d bytes after the last reply", n)
	}
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}

// scenarios are captures that depend on timing, which other tests cover with different limits, and
// captures of streams.
var scenarios = regexp.MustCompile(`^(stream-|raw-strm-create|raw-overcrowded|raw-logoff|err-logoff|err-limit|err-timeout|timeout-expired)`)

// decidedOtherwise lists requests that brpc answers and this server refuses, with the code, or 0 if
// it closes the connection without a reply.
var decidedOtherwise = map[string]rpc.Code{
	"raw-attach-negative": rpc.BadRequest, "raw-crc-type9": rpc.BadRequest, "raw-content-unknown": rpc.BadRequest, "raw-meta-gt-body": 0,
	"raw-ok-then-bad": 0, // brpc may wait for the rest of an HTTP request
}

// TestCapturedRequests sends each captured request. The replies must equal those of the captured
// server in every field of the meta and in the data.
func TestCapturedRequests(t *testing.T) {
	for _, c := range golden.Load(t, "testdata/golden", "testdata/peers/rpc-to-brpc", "testdata/peers/brpc-to-rpc", "testdata/peers/brpc-go-to-rpc") {
		if scenarios.MatchString(c.Name) {
			continue
		}
		t.Run(c.Dir+"/"+c.Name, func(t *testing.T) {
			t.Parallel()
			_, addr := startServer(t, capturedOptions(c))
			for _, conn := range c.Conns() {
				for _, piece := range []int{1 << 20, 1, 7} {
					checkCaptured(t, c, addr, conn, piece)
				}
			}
		})
	}
}

func checkCaptured(t *testing.T, c *golden.Capture, addr, name string, piece int) {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }() // the test has ended
	for b := range slices.Chunk(c.Sent(name, true), piece) {
		if _, err := conn.Write(b); err != nil {
			break // the server has closed the connection, which is checked below
		}
	}
	code, otherwise := decidedOtherwise[c.Name]
	sent := c.Sent(name, false)
	if otherwise && code != 0 {
		got := nextReply(t, conn)
		if rpc.Code(got.meta.GetResponse().GetErrorCode()) != code || got.meta.GetCorrelationId() != 7 || len(got.data) > 0 {
			t.Errorf("%v", got.meta)
		}
		return
	}
	if c.Name == "err-unset" {
		got := nextReply(t, conn).plain(t)
		if e := got.meta.GetResponse(); e.GetErrorCode() != int32(rpc.BadResponse) || !strings.HasPrefix(e.GetErrorText(), "[E2002]Missing required fields in response: ") {
			t.Errorf("%v", got.meta)
		}
		return
	}
	// The lengths of addresses and of compressed bytes may differ, so read the same number of
	// frames.
	want := replies(t, sent)
	var got []reply
	for range want {
		got = append(got, nextReply(t, conn))
	}
	byID := func(a, b reply) int { return int(a.meta.GetCorrelationId() - b.meta.GetCorrelationId()) }
	slices.SortStableFunc(want, byID)
	slices.SortStableFunc(got, byID)
	for i := range want {
		g, w := got[i].plain(t), want[i].plain(t)
		if !proto.Equal(g.meta, w.meta) || !bytes.Equal(g.data, w.data) {
			t.Errorf("pieces of %d: got\n%v %q, want\n%v %q", piece, g.meta, g.data, w.meta, w.data)
		}
		gb, _ := proto.MarshalOptions{Deterministic: true}.Marshal(got[i].meta)
		wb, _ := proto.MarshalOptions{Deterministic: true}.Marshal(want[i].meta)
		if !bytes.Equal(gb, wb) {
			t.Errorf("pieces of %d: the metas differ in encoding:\n%x\n%x", piece, gb, wb)
		}
	}
	if piece < len(c.Sent(name, true)) {
		return
	}
	closed := strings.Contains(c.Outcome, "closed the connection") || strings.HasPrefix(c.Name, "auth-missing") || strings.HasPrefix(c.Name, "auth-wrong") || c.Name == "err-closeconn" || otherwise
	if closed && !isClosed(t, conn) || !closed && !staysOpen(t, conn) {
		t.Errorf("pieces of %d: the connection is not closed: %t", piece, closed)
	}
}

// nextReply reads one frame.
func nextReply(t *testing.T, conn net.Conn) reply {
	t.Helper()
	_ = conn.SetReadDeadline(time.Now().Add(testkit.Patience()))
	b := make([]byte, frame.HeaderBytes)
	if _, err := io.ReadFull(conn, b); err != nil {
		t.Fatal(err)
	}
	h, err := frame.Parse(b)
	if err != nil {
		t.Fatal(err)
	}
	b = append(b, make([]byte, h.Body)...)
	if _, err := io.ReadFull(conn, b[frame.HeaderBytes:]); err != nil {
		t.Fatal(err)
	}
	return replies(t, b)[0]
}
