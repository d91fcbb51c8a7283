package rpc_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/rpc"
	"github.com/kvlane/kvlane/rpc/chain"
	"github.com/kvlane/kvlane/rpc/echo"
)

// echoMessages is a handler that accepts streams and returns their messages until they end.
func echoMessages(ctx context.Context, in *echo.EchoRequest) (*echo.EchoResponse, error) {
	if call := rpc.FromContext(ctx); call.WantsStreams() {
		list, err := call.AcceptStreams(rpc.StreamOptions{})
		if err != nil {
			return nil, err
		}
		for _, s := range list {
			go func() {
				for {
					m, err := s.Receive(context.Background())
					if err != nil || s.Send(context.Background(), m) != nil {
						_ = s.Close() // it has ended
						return
					}
				}
			}()
		}
	}
	return &echo.EchoResponse{Message: in.Message}, nil
}

func openStream(t *testing.T, c *rpc.Client) *rpc.Stream {
	t.Helper()
	list, err := c.OpenStreams(t.Context(), echoMethod, &echo.EchoRequest{Message: proto.String("")}, new(echo.EchoResponse), 1, rpc.StreamOptions{})
	must(t, err)
	return list[0]
}

// A request over the client's limits fails before a byte of it is written: the server counts only
// the next call, on the same connection. A request at a limit is sent.
func TestRequestsOverTheLimits(t *testing.T) {
	s, addr := serve(t, rpc.ServerOptions{MaxBodyBytes: 1 << 20, MaxMetaBytes: 4 << 10}, echo.NewEchoService(echoFunc(echoMessages)))
	c := newClient(t, addr, rpc.ClientOptions{MaxBodyBytes: 1 << 20, MaxMetaBytes: 4 << 10})
	attach := func(n int) rpc.CallOption { return rpc.WithAttachment(chain.OfBytes(make([]byte, n))) }
	for name, call := range map[string]struct {
		message string
		option  rpc.CallOption
		texts   []string
	}{
		"message":    {strings.Repeat("x", 1<<20), attach(0), []string{"request of 10486", "MaxBodyBytes of 1048576"}},
		"attachment": {"x", attach(1 << 20), []string{"request of 10486", "MaxBodyBytes of 1048576"}},
		"both":       {strings.Repeat("x", 1<<19), attach(1 << 19), []string{"request of 10486", "MaxBodyBytes of 1048576"}},
		"fields":     {"x", rpc.WithFields(map[string]string{"a": strings.Repeat("x", 4<<10)}), []string{"meta of 41", "MaxMetaBytes of 4096"}},
		"request id": {"x", rpc.WithRequestID(strings.Repeat("x", 5000)), []string{"meta of 50", "MaxMetaBytes of 4096"}},
	} {
		_, err := echoCall(t.Context(), c, call.message, call.option)
		if rpc.CodeOf(err) != rpc.BadRequest || errors.Is(err, rpc.ErrNotSent) {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for _, text := range call.texts {
			if !strings.Contains(err.Error(), text) {
				t.Errorf("%s: %v has no %q", name, err, text)
			}
		}
	}
	if _, err := echoCall(t.Context(), c, "fits", attach(1<<20-200)); err != nil {
		t.Error(err)
	}
	if got := s.Stats(); got.Requests != 1 || got.Connections != 1 || got.Broken != 0 {
		t.Errorf("the server has received %+v", got)
	}
}

// The error of a response over a limit names the limit.
func TestResponsesOverTheLimits(t *testing.T) {
	_, addr := serve(t, rpc.ServerOptions{}, echo.NewEchoService(echoFunc(func(ctx context.Context, in *echo.EchoRequest) (*echo.EchoResponse, error) {
		rpc.FromContext(ctx).Reply.Attachment = chain.OfBytes(make([]byte, 1<<20))
		return &echo.EchoResponse{Message: in.Message}, nil
	})))
	c := newClient(t, addr, rpc.ClientOptions{MaxBodyBytes: 1 << 20})
	_, err := echoCall(t.Context(), c, "x")
	if rpc.CodeOf(err) != rpc.FailedSocket || !strings.Contains(err.Error(), "ClientOptions.MaxBodyBytes") {
		t.Error(err)
	}
}

// A stream continues after a message over the limit.
func TestStreamMessagesOverTheLimit(t *testing.T) {
	_, addr := serve(t, rpc.ServerOptions{MaxBodyBytes: 1 << 20}, echo.NewEchoService(echoFunc(echoMessages)))
	s := openStream(t, newClient(t, addr, rpc.ClientOptions{MaxBodyBytes: 1 << 20}))
	err := s.Send(t.Context(), chain.OfBytes(make([]byte, 1<<20+1)))
	if rpc.CodeOf(err) != rpc.BadRequest || !strings.Contains(err.Error(), "1048577") || !strings.Contains(err.Error(), "MaxBodyBytes of 1048576") {
		t.Errorf("over the limit: %v", err)
	}
	must(t, s.Send(t.Context(), chain.OfBytes([]byte("next"))))
	m, err := s.Receive(t.Context())
	must(t, err)
	if b, err := m.Bytes(); err != nil || string(b) != "next" {
		t.Errorf("%q, %v", b, err)
	}
	m.Release()
	must(t, s.Close())
}

// A nil chain is an empty message.
func TestStreamSendsNil(t *testing.T) {
	_, addr := serve(t, rpc.ServerOptions{}, echo.NewEchoService(echoFunc(echoMessages)))
	s := openStream(t, newClient(t, addr, rpc.ClientOptions{}))
	must(t, s.Send(t.Context(), nil))
	m, err := s.Receive(t.Context())
	if must(t, err); m.Len() != 0 {
		t.Errorf("%d bytes", m.Len())
	}
	must(t, s.Close())
	if _, err := s.Receive(t.Context()); !errors.Is(err, io.EOF) {
		t.Error(err)
	}
}

func TestNilServices(t *testing.T) {
	s, err := rpc.NewServer(rpc.ServerOptions{})
	must(t, err)
	defer func() { must(t, s.Close()) }()
	for name, err := range map[string]error{
		"service":     s.Register(nil),
		"function":    s.Register(&rpc.Service{Name: "a.B", Methods: []rpc.Method{rpc.NewMethod[*echo.EchoRequest, *echo.EchoResponse]("Echo", nil)}}),
		"listener":    s.Serve(nil),
		"descriptor":  second(rpc.NewService(nil, nil)),
		"interceptor": second(rpc.NewServer(rpc.ServerOptions{Interceptors: []rpc.Interceptor{nil}})),
	} {
		if !errors.Is(err, errdefs.ErrInvalid) || !strings.Contains(err.Error(), "nil") {
			t.Errorf("%s: %v", name, err)
		}
	}
	must(t, s.Register(echo.NewEchoService(echoFunc(echoMessages))))
}

func second[T any](_ T, err error) error { return err }

// Messages of nil fail the call. The connection is usable.
func TestNilMessages(t *testing.T) {
	_, addr := serve(t, rpc.ServerOptions{}, echo.NewEchoService(echoFunc(echoMessages)))
	c := newClient(t, addr, rpc.ClientOptions{})
	in := &echo.EchoRequest{Message: proto.String("x")}
	for name, err := range map[string]error{
		"request":        c.Call(t.Context(), echoMethod, nil, new(echo.EchoResponse)),
		"response":       c.Call(t.Context(), echoMethod, in, nil),
		"typed response": c.Call(t.Context(), echoMethod, in, (*echo.EchoResponse)(nil)),
	} {
		if rpc.CodeOf(err) != rpc.BadRequest || !strings.Contains(err.Error(), "nil") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := echoCall(t.Context(), c, "x", rpc.WithAttachment(nil), rpc.ReceiveAttachment(nil), rpc.WithFields(nil), rpc.ReceiveFields(nil)); err != nil {
		t.Error(err)
	}
}

// Unknown values of options fail a call, and a response.
func TestUnknownOptions(t *testing.T) {
	_, addr := serve(t, rpc.ServerOptions{}, echo.NewEchoService(echoFunc(func(ctx context.Context, _ *echo.EchoRequest) (*echo.EchoResponse, error) {
		rpc.FromContext(ctx).Reply.Checksum = 9
		return &echo.EchoResponse{Message: proto.String("x")}, nil
	})))
	c := newClient(t, addr, rpc.ClientOptions{})
	for text, o := range map[string]rpc.CallOption{
		"compression type 9": rpc.WithCompression(9), "content type 9": rpc.WithContent(9), "checksum 9": rpc.WithChecksum(9), "checksum -1": rpc.WithChecksum(-1),
	} {
		if _, err := echoCall(t.Context(), c, "x", o); rpc.CodeOf(err) != rpc.BadRequest || !strings.Contains(err.Error(), text) {
			t.Errorf("%s: %v", text, err)
		}
	}
	if _, err := echoCall(t.Context(), c, "x"); rpc.CodeOf(err) != rpc.BadResponse {
		t.Errorf("a response with an unknown checksum: %v", err)
	}
}

// Contexts of nil panic with a text, as in net and context. No lock is held afterwards.
func TestNilContexts(t *testing.T) {
	server, addr := serve(t, rpc.ServerOptions{}, echo.NewEchoService(echoFunc(echoMessages)))
	c := newClient(t, addr, rpc.ClientOptions{})
	s := openStream(t, c)
	var none context.Context
	for name, f := range map[string]func() error{
		"Call":     func() error { return second(echoCall(none, c, "x")) },
		"Connect":  func() error { return c.Connect(none) },
		"Send":     func() error { return s.Send(none, chain.OfBytes([]byte("x"))) },
		"Receive":  func() error { return second(s.Receive(none)) },
		"Shutdown": func() error { return server.Shutdown(none) },
	} {
		func() {
			defer func() {
				if got := recover(); got != "rpc: nil context" {
					t.Errorf("%s: panic %v", name, got)
				}
			}()
			t.Errorf("%s returned %v", name, f())
		}()
	}
	must(t, s.Send(t.Context(), chain.OfBytes([]byte("next"))))
	m, err := s.Receive(t.Context())
	must(t, err)
	if b, err := m.Bytes(); err != nil || !bytes.Equal(b, []byte("next")) {
		t.Errorf("%q, %v", b, err)
	}
	m.Release()
	must(t, s.Close())
}
