package rpc_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"regexp"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/rpc"
	"github.com/kvlane/kvlane/rpc/chain"
	"github.com/kvlane/kvlane/rpc/echo"
	"github.com/kvlane/kvlane/rpc/internal/frame"
	"github.com/kvlane/kvlane/rpc/internal/golden"
	"github.com/kvlane/kvlane/rpc/internal/pb"
)

// acceptCaptured accepts the streams of a call as the captured server does.
func acceptCaptured(call *rpc.Call, text string) error {
	if text == "noaccept" {
		return nil
	}
	list, err := call.AcceptStreams(rpc.StreamOptions{SendOnly: text == "nohandler"})
	if err != nil {
		return err
	}
	for _, s := range list {
		if text == "closed" { // before the response
			if err := s.Close(); err != nil {
				return err
			}
		}
		go serveStream(s, text)
	}
	return nil
}

// serveStream reads messages until the client closes the stream or the connection ends.
func serveStream(s *rpc.Stream, text string) {
	ctx := context.Background()
	for {
		m, err := s.Receive(ctx)
		if err != nil {
			return
		}
		switch text {
		case "echo":
			err = s.Send(ctx, m)
		case "srvclose":
			m.Release()
			err = s.Close()
		default:
			m.Release()
		}
		if err != nil {
			return
		}
	}
}

var streamCaptures = regexp.MustCompile(`^(stream-|raw-strm-create)`)

// anyFrame is a frame with its decoded meta, for comparisons.
type anyFrame struct {
	stream *pb.StreamFrame // nil for messages
	reply  reply           // the message, or the message in the first frame of a stream
	data   []byte
}

func (f anyFrame) String() string { return fmt.Sprintf("{%v %v %q}", f.stream, f.reply.meta, f.data) }

func readFrame(r io.Reader) (anyFrame, error) {
	head := make([]byte, frame.HeaderBytes)
	if _, err := io.ReadFull(r, head); err != nil {
		return anyFrame{}, err
	}
	h, err := frame.Parse(head)
	if err != nil {
		return anyFrame{}, err
	}
	body := make([]byte, h.Body)
	if _, err := io.ReadFull(r, body); err != nil {
		return anyFrame{}, err
	}
	f := anyFrame{data: body[h.Meta:]}
	if h.Kind == frame.Stream {
		f.stream = new(pb.StreamFrame)
		return f, proto.Unmarshal(body[:h.Meta], f.stream)
	}
	f.reply.meta = new(pb.Meta)
	return f, proto.Unmarshal(body[:h.Meta], f.reply.meta)
}

// isFeedback reports whether the frame is a FEEDBACK. Their number depends on the program that
// reads.
func (f anyFrame) isFeedback() bool { return f.stream.GetFrameType() == 4 }

// next returns the next frame that is not a FEEDBACK, with its response decoded.
func next(t *testing.T, r io.Reader) anyFrame {
	t.Helper()
	f, err := readFrame(r)
	for err == nil && f.isFeedback() {
		f, err = readFrame(r)
	}
	if err != nil {
		t.Fatal(err)
	}
	if strings.HasPrefix(string(f.data), "PRPC") {
		f.reply = replies(t, f.data)[0].plain(t)
		f.data = nil
	}
	return f
}

// TestCapturedStreams plays the client of each captured stream. The server must send the captured
// frames, except for FEEDBACK.
func TestCapturedStreams(t *testing.T) {
	for _, c := range golden.Load(t, "testdata/golden", "testdata/peers/rpc-to-brpc", "testdata/peers/brpc-to-rpc") {
		if !streamCaptures.MatchString(c.Name) || len(c.Directions) < 2 || c.Directions[0].Cut || c.Directions[1].Cut {
			continue
		}
		t.Run(c.Dir+"/"+c.Name, func(t *testing.T) {
			t.Parallel()
			_, addr := startServer(t, capturedOptions(c))
			conn := dial(t, addr)
			_ = conn.SetDeadline(time.Now().Add(testkit.Patience()))
			toServer, fromServer := c.Sent("conn0", true), c.Sent("conn0", false)
			want := strings.NewReader(string(fromServer))
			for _, s := range c.Order {
				if s.ToServer {
					if _, err := conn.Write(toServer[:s.Bytes]); err != nil {
						t.Fatal(err)
					}
					toServer = toServer[s.Bytes:]
					continue
				}
				for end := want.Len() - s.Bytes; want.Len() > end; {
					w, err := readFrame(want)
					if err != nil {
						t.Fatal(err)
					}
					if w.isFeedback() {
						continue
					}
					if strings.HasPrefix(string(w.data), "PRPC") {
						w.reply = replies(t, w.data)[0].plain(t)
						w.data = nil
					}
					if c.Name == "stream-gone" && w.stream.GetFrameType() == 2 {
						continue // a CLOSE after a failed call, which brpc sends for one code only
					}
					g := next(t, conn)
					if !proto.Equal(g.stream, w.stream) || !proto.Equal(g.reply.meta, w.reply.meta) || string(g.data) != string(w.data) {
						t.Errorf("got  %v, want %v", g, w)
					}
				}
			}
		})
	}
}

// TestCapturedStreamServers opens streams at a server that sends the captured frames.
func TestCapturedStreamServers(t *testing.T) {
	for _, c := range golden.Load(t, "testdata/golden") {
		if !strings.HasPrefix(c.Name, "stream-") || c.Directions[1].Cut {
			continue
		}
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				playServer(t, l, c)
			}()
			f := parseFlags(c.Client)
			client := newClient(t, l.Addr().String(), rpc.ClientOptions{Credential: []byte(f["auth"])})
			list, err := openStreams(t, client, f["msg"], f.number("streams", 1))
			want := regexp.MustCompile(`failed code=(\d+)`).FindStringSubmatch(c.Outcome)
			if want != nil {
				if got := fmt.Sprint(int(rpc.CodeOf(err))); got != want[1] {
					t.Errorf("%v, not %s", err, want[0])
				}
			} else if err != nil {
				t.Error(err)
			}
			for _, s := range list {
				for range strings.Count(c.Outcome, "stream got") {
					m, err := s.Receive(t.Context())
					if err != nil {
						t.Fatal(err)
					}
					if want := fmt.Sprintf("stream got %d bytes", m.Len()); !strings.Contains(c.Outcome, want) {
						t.Errorf("%s: not in %q", want, c.Outcome)
					}
					m.Release()
				}
				if err := s.Close(); err != nil {
					t.Error(err)
				}
			}
			if err := errors.Join(client.Close(), l.Close()); err != nil {
				t.Error(err)
			}
			<-ended
		})
	}
}

// playServer accepts a connection and answers the request with all captured frames, except FEEDBACK
// and the end of the streams.
func playServer(t *testing.T, l net.Listener, c *golden.Capture) {
	conn, err := l.Accept()
	if err != nil {
		return // the test has ended
	}
	defer func() { _ = conn.Close() }() // the test has ended
	request, err := readFrame(conn)
	if err != nil {
		t.Error(err)
		return
	}
	id := request.reply.meta.GetCorrelationId()
	for b := c.Sent("conn0", false); len(b) > 0; {
		h, err := frame.Parse(b)
		if err != nil {
			t.Error(err)
			return
		}
		body := b[frame.HeaderBytes : frame.HeaderBytes+h.Body]
		b = b[frame.HeaderBytes+h.Body:]
		m := new(pb.StreamFrame)
		if err := proto.Unmarshal(body[:h.Meta], m); err != nil {
			t.Error(err)
			return
		}
		data := body[h.Meta:]
		if strings.HasPrefix(string(data), "PRPC") {
			inner, err := frame.Parse(data)
			if err != nil {
				t.Error(err)
				return
			}
			data = withID(t, data, inner, id)
		} else if m.GetFrameType() != 3 {
			continue
		}
		out, err := appendFrame(nil, frame.Stream, m, data)
		if err != nil {
			t.Error(err)
			return
		}
		if _, err := conn.Write(out); err != nil {
			return
		}
	}
	_, _ = io.Copy(io.Discard, conn) // until the client closes the connection
}

// openStreams opens streams for a captured client.
func openStreams(t *testing.T, c *rpc.Client, message string, n int) ([]*rpc.Stream, error) {
	t.Helper()
	return c.OpenStreams(t.Context(), echoMethod, &echo.EchoRequest{Message: proto.String(message)}, new(echo.EchoResponse), n, rpc.StreamOptions{})
}

func TestStreams(t *testing.T) {
	s, addr := startServer(t, rpc.ServerOptions{})
	client := newClient(t, addr, rpc.ClientOptions{})
	list, err := openStreams(t, client, "echo", 3)
	if err != nil {
		t.Fatal(err)
	}
	for i, st := range list {
		for _, n := range []int{0, 1, 100, 3 << 20} {
			want := strings.Repeat(fmt.Sprint(i), n)
			if err := st.Send(t.Context(), chain.OfBytes([]byte(want))); err != nil {
				t.Fatal(err)
			}
			got, err := st.Receive(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if b, err := got.Bytes(); err != nil || string(b) != want {
				t.Errorf("%d bytes of %d, %v", len(b), n, err)
			}
			got.Release()
		}
	}
	// A call concurrent with the streams.
	if _, err := echoCall(t.Context(), client, "hello"); err != nil {
		t.Error(err)
	}
	for _, st := range list {
		if err := errors.Join(st.Close(), st.Close()); err != nil {
			t.Error(err)
		}
		if _, err := st.Receive(t.Context()); !errors.Is(err, io.EOF) {
			t.Errorf("receive after close: %v", err)
		}
		if err := st.Send(t.Context(), chain.OfBytes([]byte("x"))); rpc.CodeOf(err) != rpc.Closed {
			t.Errorf("send after close: %v", err)
		}
	}
	if got := s.Stats(); got.Broken != 0 {
		t.Errorf("%+v", got)
	}
}

func TestStreamThatTheServerRefuses(t *testing.T) {
	_, addr := startServer(t, rpc.ServerOptions{})
	client := newClient(t, addr, rpc.ClientOptions{})
	for message, code := range map[string]rpc.Code{"noaccept": rpc.BadRequest, "ERR2001": rpc.Internal, "ERR1001": rpc.NoService} {
		if _, err := openStreams(t, client, message, 1); rpc.CodeOf(err) != code {
			t.Errorf("%s: %v", message, err)
		}
	}
	list, err := openStreams(t, client, "nohandler", 1)
	if err != nil {
		t.Fatal(err)
	}
	if err := list[0].Send(t.Context(), chain.OfBytes([]byte("x"))); rpc.CodeOf(err) != rpc.Closed {
		t.Errorf("send to a server that does not receive: %v", err)
	}
	if list, err = openStreams(t, client, "closed", 1); err != nil {
		t.Fatal(err)
	}
	if _, err := list[0].Receive(t.Context()); !errors.Is(err, io.EOF) {
		t.Errorf("after the handler has closed: %v", err)
	}
	if list, err = openStreams(t, client, "srvclose", 1); err != nil {
		t.Fatal(err)
	}
	if err := list[0].Send(t.Context(), chain.OfBytes([]byte("x"))); err != nil {
		t.Error(err)
	}
	if _, err := list[0].Receive(t.Context()); !errors.Is(err, io.EOF) {
		t.Errorf("after the server has closed: %v", err)
	}
}

// TestStreamWindow sends to a server that does not consume messages. Send must wait when
// MaxBuffered bytes are buffered.
func TestStreamWindow(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }() // the test has ended
	release, consumed := make(chan struct{}), make(chan struct{})
	s, err := rpc.NewServer(rpc.ServerOptions{})
	if err != nil {
		t.Fatal(err)
	}
	v, err := rpc.NewService(echo.File_rpc_echo_echo_proto.Services().Get(0), map[string]rpc.Handler{"Echo": func(ctx context.Context, _ proto.Message) (proto.Message, error) {
		list, err := rpc.FromContext(ctx).AcceptStreams(rpc.StreamOptions{})
		if err != nil {
			return nil, err
		}
		go func() {
			defer close(consumed)
			<-release
			serveStream(list[0], "sink")
		}()
		return &echo.EchoResponse{Message: proto.String("")}, nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Register(v); err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	client := newClient(t, l.Addr().String(), rpc.ClientOptions{})
	list, err := openStreams(t, client, "", 1)
	if err != nil {
		t.Fatal(err)
	}
	sent := 0
	for end := time.Now().Add(testkit.Patience()); ; {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		err = list[0].Send(ctx, chain.OfBytes(make([]byte, 64<<10)))
		cancel()
		switch {
		case err == nil:
			sent += 64 << 10
			continue
		case rpc.CodeOf(err) == rpc.TimedOut && sent < rpc.DefaultMaxBuffered && time.Now().Before(end):
			continue // the machine is busy
		}
		break
	}
	if rpc.CodeOf(err) != rpc.TimedOut || sent != rpc.DefaultMaxBuffered {
		t.Errorf("%d bytes sent, %v", sent, err)
	}
	close(release)
	if err := list[0].Send(t.Context(), chain.OfBytes(make([]byte, 64<<10))); err != nil {
		t.Errorf("after the server has consumed: %v", err)
	}
	if err := errors.Join(list[0].Close(), client.Close(), s.Close(), <-served); err != nil {
		t.Error(err)
	}
	<-consumed
}
