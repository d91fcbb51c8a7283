package rpc_test

import (
	"context"
	"fmt"
	"net"

	"google.golang.org/protobuf/proto"

	"github.com/kvlane/kvlane/rpc"
	"github.com/kvlane/kvlane/rpc/chain"
	"github.com/kvlane/kvlane/rpc/echo"
)

// start starts a server with a client.
func start(h echo.EchoServiceHandler) (c *rpc.Client, stop func()) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	s, err := rpc.NewServer(rpc.ServerOptions{})
	if err == nil {
		err = s.Register(echo.NewEchoService(h))
	}
	if err != nil {
		panic(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(listener) }()
	if c, err = rpc.NewClient(listener.Addr().String(), rpc.ClientOptions{}); err != nil {
		panic(err)
	}
	return c, func() {
		// the client is connected, so Serve has begun
		_, _ = c.Close(), s.Close() // the example is over
		<-served                    //nolint:errcheck // the example is over
	}
}

func ExampleWithAttachment() {
	c, stop := start(echoService{})
	defer stop()
	ctx, data := context.Background(), []byte("bytes")
	in := &echo.EchoRequest{Message: proto.String("hello")}

	var received chain.Chain
	defer received.Release()
	_, err := echo.NewEchoServiceStub(c).Echo(ctx, in, rpc.WithAttachment(chain.OfBytes(data)), rpc.ReceiveAttachment(&received))
	if err != nil {
		panic(err)
	}
	b, err := received.Bytes() // a copy; Buffers and Contiguous make none
	fmt.Println(string(b), err)
	// Output: bytes <nil>
}

type streamService struct{}

func (streamService) Echo(ctx context.Context, in *echo.EchoRequest) (*echo.EchoResponse, error) {
	list, err := rpc.FromContext(ctx).AcceptStreams(rpc.StreamOptions{})
	if err != nil {
		return nil, err
	}
	go repeat(list[0]) // messages flow after the response
	return &echo.EchoResponse{Message: in.Message}, nil
}

func repeat(s *rpc.Stream) {
	defer s.Close()
	ctx := context.Background() // that of the handler ends when it returns
	for {
		m, err := s.Receive(ctx)
		if err != nil { // io.EOF: the client has closed the stream
			return
		}
		if err := s.Send(ctx, m); err != nil { // it takes over m
			return
		}
	}
}

func ExampleClient_OpenStreams() {
	c, stop := start(streamService{})
	defer stop()
	ctx := context.Background()
	in, out := &echo.EchoRequest{Message: proto.String("hello")}, new(echo.EchoResponse)

	list, err := c.OpenStreams(ctx, "example.EchoService/Echo", in, out, 1, rpc.StreamOptions{})
	if err != nil {
		panic(err)
	}
	s := list[0]
	defer s.Close()
	err = s.Send(ctx, chain.OfBytes([]byte("message")))
	if err != nil {
		panic(err)
	}
	m, err := s.Receive(ctx)
	if err != nil {
		panic(err)
	}
	defer m.Release()
	b, err := m.Bytes()
	fmt.Println(string(b), err)
	// Output: message <nil>
}
