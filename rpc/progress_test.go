package rpc_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/kvlane/kvlane/rpc"
	"github.com/kvlane/kvlane/rpc/chain"
	"github.com/kvlane/kvlane/rpc/echo"
)

// answer is the response of handlers whose response does not matter.
func answer() *echo.EchoResponse { return &echo.EchoResponse{Message: proto.String("")} }

// Many calls with long attachments share a connection. Requests and responses wait for each other,
// and none fails.
func TestManyLongMessagesOnAConnection(t *testing.T) {
	const limit = 1 << 20
	s, addr := startServer(t, rpc.ServerOptions{MaxUnsentBytes: limit})
	client := newClient(t, addr, rpc.ClientOptions{MaxUnsentBytes: limit})
	var group sync.WaitGroup
	for range 16 {
		group.Go(func() {
			for range 3 {
				got := new(chain.Chain)
				_, err := echoCall(t.Context(), client, "hello", rpc.WithAttachment(chain.OfBytes(make([]byte, 2*limit))), rpc.ReceiveAttachment(got))
				if err != nil || got.Len() != 2*limit {
					t.Errorf("%d bytes, %v", got.Len(), err)
				}
				got.Release()
			}
		})
	}
	group.Wait()
	if got := s.Stats(); got.Broken != 0 || got.Failed != 0 {
		t.Errorf("%+v", got)
	}
}

// Responses that wait for space are dropped at the deadline of their calls. The connection goes on.
func TestResponseWaitsUntilItsDeadline(t *testing.T) {
	const limit = 1 << 20
	release := make(chan struct{})
	s, addr := serve(t, rpc.ServerOptions{MaxUnsentBytes: limit}, echo.NewEchoService(echoFunc(func(ctx context.Context, _ *echo.EchoRequest) (*echo.EchoResponse, error) {
		<-release // all are in progress
		rpc.FromContext(ctx).Reply.Attachment = chain.OfBytes(make([]byte, 16*limit))
		return answer(), nil
	})))
	conn := dial(t, addr)
	meta := "\x0a\x1e\x0a\x13example.EchoService\x12\x04Echo\x40\xac\x02\x20\x07" // timeout_ms 300
	limited := append([]byte("PRPC\x00\x00\x00"), byte(len(meta)+len(hello)), 0, 0, 0, byte(len(meta)))
	limited = append(append(limited, meta...), hello...)
	if _, err := conn.Write(bytes.Repeat(limited, 4)); err != nil {
		t.Fatal(err)
	}
	waitFor(t, func() bool { return s.Stats().Calls == 4 })
	close(release)
	time.Sleep(600 * time.Millisecond) // beyond the deadlines
	for range 2 {
		if r := nextReply(t, conn); r.meta.GetResponse().GetErrorCode() != 0 || r.meta.GetAttachmentSize() != 16*limit {
			t.Error(r.meta)
		}
		if _, err := conn.Write(request(hello)); err != nil {
			t.Fatal(err)
		}
	}
	if r := nextReply(t, conn); r.meta.GetAttachmentSize() != 16*limit {
		t.Error(r.meta)
	}
	must(t, conn.SetReadDeadline(time.Now().Add(50*time.Millisecond)))
	if n, err := conn.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("another response: %d bytes, %v", n, err)
	}
}

// deafServer accepts a connection and reads nothing from it, or with accept one request, whose
// stream it accepts.
func deafServer(t *testing.T, accept bool) string {
	t.Helper()
	l := listen(t, "tcp", "127.0.0.1:0")
	ended, stop := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		conn, err := l.Accept()
		if err != nil {
			t.Error(err)
			return
		}
		defer func() { _ = conn.Close() }() // the test has ended
		if accept {
			f, err := readFrame(conn)
			if err == nil {
				err = acceptStream(conn, f.reply.meta)
			}
			if err != nil {
				t.Error(err)
			}
		}
		<-stop
	}()
	t.Cleanup(func() {
		close(stop)
		<-ended
		must(t, l.Close())
	})
	return l.Addr().String()
}

// A client vanishes during calls. Their contexts end at once, and so does the connection.
func TestEndOfAConnectionCancelsItsCalls(t *testing.T) {
	for name, end := range map[string]func(net.Conn) error{"closed": net.Conn.Close, "half-closed": closeWrite} {
		causes := make(chan error, 1)
		s, addr := serve(t, rpc.ServerOptions{}, echo.NewEchoService(echoFunc(func(ctx context.Context, _ *echo.EchoRequest) (*echo.EchoResponse, error) {
			<-ctx.Done()
			causes <- context.Cause(ctx)
			return answer(), nil
		})))
		conn := dial(t, addr)
		if _, err := conn.Write(request(hello)); err != nil {
			t.Fatal(err)
		}
		waitFor(t, func() bool { return s.Stats().Calls == 1 })
		must(t, end(conn))
		select {
		case err := <-causes:
			if !errors.Is(err, io.EOF) {
				t.Errorf("%s: cause %v", name, err)
			}
		case <-time.After(10 * time.Second):
			t.Errorf("%s: the context of the call has not ended", name)
		}
		waitFor(t, func() bool { return s.Stats().Connections == 0 })
	}
}

// A client closes its side and reads. Handlers that do not heed their context answer it.
func TestHalfClosedConnection(t *testing.T) {
	ended := make(chan struct{}, 3)
	_, addr := serve(t, rpc.ServerOptions{}, echo.NewEchoService(echoFunc(func(ctx context.Context, _ *echo.EchoRequest) (*echo.EchoResponse, error) {
		<-ctx.Done() // the server has seen the end
		ended <- struct{}{}
		return answer(), nil
	})))
	conn := dial(t, addr)
	for range 3 {
		if _, err := conn.Write(request(hello)); err != nil {
			t.Fatal(err)
		}
	}
	must(t, closeWrite(conn))
	for range 3 {
		<-ended
		if r := nextReply(t, conn); r.meta.GetResponse().GetErrorCode() != 0 {
			t.Error(r.meta)
		}
	}
	if n, err := conn.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("%d bytes, %v, not the end", n, err)
	}
}

// A handler does not heed its context. Shutdown returns at the end of its own, and names the
// method.
func TestShutdownWithAStuckHandler(t *testing.T) {
	release := make(chan struct{})
	s, addr := serve(t, rpc.ServerOptions{}, echo.NewEchoService(echoFunc(func(context.Context, *echo.EchoRequest) (*echo.EchoResponse, error) {
		<-release
		return answer(), nil
	})))
	client := newClient(t, addr, rpc.ClientOptions{})
	called := make(chan error, 1)
	go func() {
		_, err := echoCall(t.Context(), client, "hello")
		called <- err
	}()
	waitFor(t, func() bool { return s.Stats().Calls == 1 })
	stopped := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		stopped <- s.Shutdown(ctx)
	}()
	select {
	case err := <-stopped:
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), echoMethod+" (1)") {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Error("Shutdown waits for the handler")
	}
	if err := <-called; err == nil {
		t.Error("the call succeeded")
	}
	close(release)
	must(t, s.Close())
}

// Streams send more than may be unread. They wait for the peer, which reads.
func TestManyStreamsSend(t *testing.T) {
	_, addr := serve(t, rpc.ServerOptions{}, echo.NewEchoService(echoFunc(func(ctx context.Context, _ *echo.EchoRequest) (*echo.EchoResponse, error) {
		list, err := rpc.FromContext(ctx).AcceptStreams(rpc.StreamOptions{})
		for _, s := range list {
			go func() {
				for {
					m, err := s.Receive(context.WithoutCancel(ctx))
					if err != nil {
						return
					}
					m.Release()
				}
			}()
		}
		return answer(), err
	})))
	client := newClient(t, addr, rpc.ClientOptions{MaxUnsentBytes: 1 << 20})
	list, err := openStreams(t, client, "", 30)
	if err != nil {
		t.Fatal(err)
	}
	var group sync.WaitGroup
	for _, s := range list {
		group.Go(func() {
			for range 3 {
				if err := s.Send(t.Context(), chain.OfBytes(make([]byte, 1<<20))); err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
}

// A stream sends to a server that does not read. Send ends with its context. The stream goes on,
// since no part of the message was sent.
func TestStreamSendsToAServerThatDoesNotRead(t *testing.T) {
	client := newClient(t, deafServer(t, true), rpc.ClientOptions{MaxUnsentBytes: 1 << 20})
	list, err := client.OpenStreams(t.Context(), echoMethod, &echo.EchoRequest{Message: proto.String("")}, new(echo.EchoResponse), 1, rpc.StreamOptions{MaxBuffered: 1 << 30})
	if err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(10 * time.Second); ; {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		err := list[0].Send(ctx, chain.OfBytes(make([]byte, 1<<20)))
		cancel()
		switch {
		case err == nil && time.Now().Before(end):
		case rpc.CodeOf(err) != rpc.TimedOut:
			t.Fatalf("not the end of the context: %v", err)
		case rpc.LiveStreams(list[0]) != 1:
			t.Fatal("the stream was reset")
		default:
			return
		}
	}
}

// A client sends a long request slowly: above the rate of 16 KiB a Stall, but not in time as a
// whole.
func TestSlowLongRequest(t *testing.T) {
	const n, piece = 512 << 10, 8 << 10
	s, addr := startServer(t, rpc.ServerOptions{Stall: 200 * time.Millisecond})
	conn := dial(t, addr)
	frame := request(append(bytes.Clone(hello), make([]byte, n)...), append([]byte{0x28}, binary.AppendUvarint(nil, n)...)...)
	began := time.Now()
	for len(frame) > 0 { // 6.4 s
		if _, err := conn.Write(frame[:min(piece, len(frame))]); err != nil {
			break
		}
		frame = frame[min(piece, len(frame)):]
		time.Sleep(100 * time.Millisecond)
	}
	if d := time.Since(began); d > 5*time.Second || len(frame) == 0 {
		t.Errorf("the connection was open for %v, %d bytes left", d, len(frame))
	}
	waitFor(t, func() bool { return s.Stats().Connections == 0 && s.Stats().Broken == 1 })
}

// A handler ends its goroutine, as t.FailNow does. Its call fails, and its place is free again.
func TestHandlerEndsItsGoroutine(t *testing.T) {
	s, addr := serve(t, rpc.ServerOptions{MaxPipelined: 1, MaxConcurrency: 1}, echo.NewEchoService(echoFunc(func(_ context.Context, in *echo.EchoRequest) (*echo.EchoResponse, error) {
		if in.GetMessage() == "end" {
			runtime.Goexit()
		}
		return answer(), nil
	})))
	client := newClient(t, addr, rpc.ClientOptions{})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for range 2 {
		if _, err := echoCall(ctx, client, "end"); rpc.CodeOf(err) != rpc.Internal || !strings.Contains(err.Error(), "Goexit") {
			t.Error(err)
		}
		if _, err := echoCall(ctx, client, "hello"); err != nil {
			t.Error(err)
		}
	}
	must(t, s.Shutdown(ctx))
}

// A server does not read a long request. All calls of the connection fail by the timeout of the
// write.
func TestCauseOfAWriteTimeout(t *testing.T) {
	client := newClient(t, deafServer(t, false), rpc.ClientOptions{Stall: 300 * time.Millisecond})
	errs := make(chan error, 3)
	for i := range 3 {
		go func() {
			var options []rpc.CallOption
			if i == 0 {
				options = append(options, rpc.WithAttachment(chain.OfBytes(make([]byte, 32<<20))))
			}
			_, err := echoCall(t.Context(), client, "hello", options...)
			errs <- err
		}()
	}
	for range 3 {
		if err := <-errs; rpc.CodeOf(err) != rpc.FailedSocket || !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Error(err)
		}
	}
}

// The context of a handler and those derived from it end when the handler has returned, also if
// nothing has waited for them before.
func TestContextEndsWithItsHandler(t *testing.T) {
	contexts := make(chan context.Context, 2)
	_, addr := serve(t, rpc.ServerOptions{}, echo.NewEchoService(echoFunc(func(ctx context.Context, in *echo.EchoRequest) (*echo.EchoResponse, error) {
		if in.GetMessage() == "derived" {
			derived, cancel := context.WithCancel(ctx)
			context.AfterFunc(derived, cancel)
			ctx = derived
		}
		if rpc.FromContext(ctx) == nil || in.GetMessage() != "unused" && ctx.Err() != nil {
			return nil, errors.New("the context has ended before")
		}
		contexts <- ctx
		return answer(), nil
	})))
	client := newClient(t, addr, rpc.ClientOptions{})
	for _, message := range []string{"unused", "used", "derived"} {
		for _, options := range [][]rpc.CallOption{nil, {rpc.SendTimeout()}} {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			if _, err := echoCall(ctx, client, message, options...); err != nil {
				t.Fatal(err)
			}
			got := <-contexts
			if _, ok := got.Deadline(); ok != (options != nil) {
				t.Errorf("%s: a deadline: %v", message, ok)
			}
			select {
			case <-got.Done():
				if !errors.Is(got.Err(), context.Canceled) {
					t.Errorf("%s: %v", message, got.Err())
				}
			case <-time.After(10 * time.Second):
				t.Errorf("%s: the context has not ended", message)
			}
			cancel()
		}
	}
}

// The calls of a connection wait in their handlers. Its streams go on, and further calls are
// refused.
func TestStreamsDoNotWaitForCalls(t *testing.T) {
	block := make(chan struct{})
	s, addr := serve(t, rpc.ServerOptions{MaxPipelined: 2}, echo.NewEchoService(echoFunc(func(ctx context.Context, in *echo.EchoRequest) (*echo.EchoResponse, error) {
		if in.GetMessage() == "wait" {
			<-block
			return answer(), nil
		}
		list, err := rpc.FromContext(ctx).AcceptStreams(rpc.StreamOptions{})
		if err == nil {
			go returnMessages(context.WithoutCancel(ctx), list[0])
		}
		return answer(), err
	})))
	client := newClient(t, addr, rpc.ClientOptions{})
	list, err := openStreams(t, client, "", 1)
	if err != nil {
		t.Fatal(err)
	}
	errs := make(chan error, 4)
	for range 4 {
		go func() {
			_, err := echoCall(t.Context(), client, "wait")
			errs <- err
		}()
	}
	waitFor(t, func() bool { return s.Stats().Rejected >= 2 })
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := list[0].Send(ctx, chain.OfBytes([]byte("hello"))); err != nil {
		t.Error(err)
	}
	if m, err := list[0].Receive(ctx); err != nil || m.Len() != 5 {
		t.Error(err)
	}
	close(block)
	refused := 0
	for range 4 {
		if err := <-errs; rpc.CodeOf(err) == rpc.LimitReached {
			refused++
		} else if err != nil {
			t.Error(err)
		}
	}
	if refused < 2 || refused > 3 { // the first call may count until its response is written
		t.Errorf("%d calls were refused", refused)
	}
}

// returnMessages sends the messages of a stream back.
func returnMessages(ctx context.Context, s *rpc.Stream) {
	for {
		m, err := s.Receive(ctx)
		if err != nil || s.Send(ctx, m) != nil {
			return
		}
	}
}
