package rpc_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/rpc"
	"github.com/kvlane/kvlane/rpc/echo"
	"github.com/kvlane/kvlane/rpc/internal/frame"
	"github.com/kvlane/kvlane/rpc/internal/pb"
)

// A call has chosen its connection when the server begins to shut down. Its request is not sent. A
// call in progress ends normally, and later calls make new connections.
func TestNoCallsBeginAfterANotice(t *testing.T) {
	for _, connections := range []rpc.Connections{rpc.Single, rpc.Pooled} {
		s, addr, release := startHolding(t, rpc.ServerOptions{})
		client := newClient(t, addr, rpc.ClientOptions{Connections: connections})
		holding := client
		if connections == rpc.Pooled { // the call must not have the connection of the pool
			holding = newClient(t, addr, rpc.ClientOptions{})
		}
		if _, err := echoCall(t.Context(), client, "hello", rpc.ReportExecuted()); err != nil {
			t.Fatal(err)
		}
		r, err := rpc.NewRequest(echoMethod, &echo.EchoRequest{Message: proto.String("hello")}, rpc.ReportExecuted())
		must(t, err)
		stopped := make(chan error, 1)
		whileHeld(t, s, holding, release, func() {
			_, err := rpc.DoPrepared(t.Context(), client, r, func(usable func() bool) {
				go func() { stopped <- s.Shutdown(t.Context()) }()
				waitFor(t, func() bool { return !usable() })
			})
			if rpc.CodeOf(err) != rpc.LogOff || !errors.Is(err, rpc.ErrNotSent) {
				t.Errorf("connections %d: a call that would begin after the notice: %v", connections, err)
			}
			if _, err = echoCall(t.Context(), client, "hello"); rpc.CodeOf(err) != rpc.FailedSocket || !errors.Is(err, rpc.ErrNotSent) {
				t.Errorf("connections %d: a call on a new connection: %v", connections, err)
			}
		})
		r.Release()
		must(t, <-stopped)
	}
}

// A client that is notified during a call closes the connection after the call.
func TestClientClosesAfterANotice(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	client := newClient(t, l.Addr().String(), rpc.ClientOptions{})
	called := make(chan error, 1)
	go func() {
		_, err := echoCall(t.Context(), client, "hello")
		called <- err
	}()
	conn, err := l.Accept()
	must(t, err)
	must(t, conn.SetDeadline(time.Now().Add(testkit.Patience())))
	id, err := requestID(conn)
	must(t, err)
	notice := &pb.Meta{Response: &pb.Response{ErrorCode: proto.Int32(int32(rpc.LogOff))}, CorrelationId: proto.Int64(0)}
	b, err := appendFrame(nil, frame.Message, notice, nil)
	must(t, err)
	_, err = conn.Write(append(b, response(id, hello)...))
	must(t, err)
	must(t, <-called)
	if n, err := conn.Read(b); !errors.Is(err, io.EOF) {
		t.Errorf("%d bytes, %v, not the end", n, err)
	}
	must(t, errors.Join(conn.Close(), l.Close()))
}

// A client that was notified of the shutdown gets answers until it closes its connection, or until
// a second has passed.
func TestShutdownWaitsForNotifiedClients(t *testing.T) {
	for _, closes := range []bool{true, false} {
		t.Run(fmt.Sprintf("closes=%t", closes), func(t *testing.T) {
			s, addr := startServer(t, rpc.ServerOptions{})
			conn := dial(t, addr)
			must(t, conn.SetDeadline(time.Now().Add(testkit.Patience())))
			field := []byte("\x4a\x13\x0a\x0fkvlane-executed\x12\x00")
			exchange := func(send bool, id int64, code rpc.Code) {
				t.Helper()
				if send {
					_, err := conn.Write(request(hello, field...))
					must(t, err)
				}
				f, err := readFrame(conn)
				must(t, err)
				if m := f.reply.meta; m.GetCorrelationId() != id || rpc.Code(m.GetResponse().GetErrorCode()) != code {
					t.Fatalf("a response of %v", m)
				}
			}
			exchange(true, 7, rpc.OK)
			stopped := make(chan error, 1)
			go func() { stopped <- s.Shutdown(t.Context()) }()
			exchange(false, 0, rpc.LogOff)
			exchange(true, 7, rpc.LogOff) // sent before the notice had arrived
			if closes {
				must(t, conn.Close())
			} else if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
				t.Errorf("the server did not close the connection: %v", err)
			}
			must(t, <-stopped)
		})
	}
}
