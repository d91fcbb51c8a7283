package rpc_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/rpc"
	"github.com/kvlane/kvlane/rpc/chain"
	"github.com/kvlane/kvlane/rpc/echo"
	"github.com/kvlane/kvlane/rpc/internal/pb"
	"github.com/kvlane/kvlane/wire"
)

// A handler's error is too long for a meta. Its caller gets the beginning, and the connection goes
// on.
func TestLongErrorTextIsShortened(t *testing.T) {
	long := strings.Repeat("\u00e9", 1<<20)
	s, addr := serve(t, rpc.ServerOptions{}, echo.NewEchoService(echoFunc(func(context.Context, *echo.EchoRequest) (*echo.EchoResponse, error) {
		return nil, errors.New(long)
	})))
	client := newClient(t, addr, rpc.ClientOptions{})
	for range 2 {
		_, err := echoCall(t.Context(), client, "hello")
		if rpc.CodeOf(err) != rpc.Internal || !strings.Contains(err.Error(), long[:1000]) || !strings.HasSuffix(err.Error(), "\u00e9 (shortened)") || len(err.Error()) > 1<<17 {
			t.Errorf("%.100v, %d bytes", err, len(err.Error()))
		}
	}
	if s.Stats().Connections != 1 {
		t.Errorf("%+v", s.Stats())
	}
}

// Small requests that decompress to 15 MiB each need memory of a server that has 16 MiB for requests.
func TestMemoryOfDecompressedRequests(t *testing.T) {
	testkit.SkipRace(t, "it compresses 105 MiB; other tests call with compression")
	in, release := make(chan struct{}, 10), make(chan struct{})
	_, addr := serve(t, rpc.ServerOptions{MaxBodyBytes: 16 << 20, MemoryBytes: 16 << 20}, echo.NewEchoService(echoFunc(func(context.Context, *echo.EchoRequest) (*echo.EchoResponse, error) {
		in <- struct{}{}
		<-release
		return &echo.EchoResponse{Message: proto.String("")}, nil
	})))
	client := newClient(t, addr, rpc.ClientOptions{})
	bomb := func() error {
		_, err := echoCall(t.Context(), client, string(make([]byte, 15<<20)), rpc.WithCompression(rpc.Gzip))
		return err
	}
	first := make(chan error, 1)
	go func() { first <- bomb() }()
	<-in
	for range 5 {
		if err := bomb(); rpc.CodeOf(err) != rpc.Overcrowded || !strings.Contains(err.Error(), "no memory to decompress") {
			t.Error(err)
		}
	}
	close(release)
	must(t, <-first)
	must(t, bomb()) // the memory is free again
}

// Clients without a credential begin long requests. They take no memory of those with one.
func TestClientsWithoutCredentialTakeNoMemory(t *testing.T) {
	_, addr := startServer(t, rpc.ServerOptions{MemoryBytes: 1 << 20, MaxBodyBytes: 1 << 20, Authenticate: func(_ context.Context, credential []byte, _ net.Addr) (any, error) {
		if string(credential) != "secret" {
			return nil, errors.New("wrong credential")
		}
		return nil, nil
	}})
	long := request(append(append([]byte(nil), hello...), make([]byte, 900<<10)...))
	for range 3 {
		if _, err := dial(t, addr).Write(long[:64<<10]); err != nil {
			t.Fatal(err)
		}
	}
	time.Sleep(20 * time.Millisecond) // until the server reads them
	client := newClient(t, addr, rpc.ClientOptions{Credential: []byte("secret")})
	ctx, cancel := context.WithTimeout(t.Context(), rpc.DefaultStall/3)
	defer cancel()
	if _, err := echoCall(ctx, client, "hello", rpc.WithAttachment(chain.OfBytes(make([]byte, 500<<10)))); err != nil {
		t.Error(err)
	}
}

// A peer that resets a stream in the middle of a message does not end it well.
func TestResetIsAnError(t *testing.T) {
	addr, accepted := acceptServer(t)
	conn := dial(t, addr)
	if _, err := conn.Write(request(hello, 0x42, 4, 0x08, 7, 0x10, 1)); err != nil {
		t.Fatal(err)
	}
	id := next(t, conn).stream.GetSourceStreamId()
	piece := streamFrame(t, &pb.StreamFrame{StreamId: &id, FrameType: proto.Int32(3), HasContinuation: proto.Bool(true)}, make([]byte, 1000))
	reset := streamFrame(t, &pb.StreamFrame{StreamId: &id, FrameType: proto.Int32(1)}, nil)
	if _, err := conn.Write(append(piece, reset...)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience())
	defer cancel()
	if _, err := (<-accepted).Receive(ctx); errors.Is(err, io.EOF) || rpc.CodeOf(err) != rpc.EndOfFile {
		t.Error(err)
	}
}

// A connection with a stream in use is not idle.
func TestStreamInUseKeepsItsConnection(t *testing.T) {
	s, addr := serve(t, rpc.ServerOptions{MaxConnections: 1}, echo.NewEchoService(echoFunc(func(ctx context.Context, _ *echo.EchoRequest) (*echo.EchoResponse, error) {
		list, err := rpc.FromContext(ctx).AcceptStreams(rpc.StreamOptions{})
		if err == nil {
			go serveStream(list[0], "echo")
		}
		return &echo.EchoResponse{Message: proto.String("")}, err
	})))
	list, err := openStreams(t, newClient(t, addr, rpc.ClientOptions{}), "hello", 1)
	must(t, err)
	defer func() { must(t, list[0].Close()) }()
	opened := false
	for end := time.Now().Add(wire.Grace + 200*time.Millisecond); time.Now().Before(end) || !opened; {
		if !opened && time.Now().After(end.Add(-100*time.Millisecond)) {
			opened = true
			if !isRefused(dial(t, addr)) {
				t.Error("a second connection is open")
			}
		}
		must(t, list[0].Send(t.Context(), chain.OfBytes([]byte("hello"))))
		m, err := list[0].Receive(t.Context())
		if err != nil {
			t.Fatal(fmt.Errorf("%w, %+v", err, s.Stats()))
		}
		m.Release()
	}
}
