package main

import (
	"context"
	"errors"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/kvlane/kvlane/bench/calls"
	"github.com/kvlane/kvlane/bench/rounds"
	"github.com/kvlane/kvlane/rpc/echo"
)

const (
	callTimeout = 10 * time.Second
	method      = "/example.EchoService/Echo"
)

// subject is a client of grpc-go and its server.
type subject struct {
	load    calls.Load
	message string
	server  *grpc.Server
	served  chan error
	conn    *grpc.ClientConn
}

// openGRPC starts a server and connects a client, both with default options but for the limit of
// messages. It has no subject for attachments.
func openGRPC(ctx context.Context, l calls.Load) (calls.Subject, error) {
	if l.Attachment > 0 {
		return nil, nil
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	limit := int(l.Body) + 64<<10
	s := &subject{load: l, message: string(calls.Pattern(l.Body)), server: grpc.NewServer(grpc.MaxRecvMsgSize(limit)), served: make(chan error, 1)}
	s.server.RegisterService(&grpc.ServiceDesc{
		ServiceName: "example.EchoService", HandlerType: (*any)(nil), Methods: []grpc.MethodDesc{{MethodName: "Echo", Handler: handle}},
	}, struct{}{})
	go func() { s.served <- s.server.Serve(listener) }()
	s.conn, err = grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(limit)))
	if err != nil {
		s.server.Stop()
		return nil, errors.Join(err, <-s.served)
	}
	return s, nil
}

// handle is the handler of Echo, as protoc-gen-go-grpc generates it.
func handle(_ any, _ context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
	in := new(echo.EchoRequest)
	if err := decode(in); err != nil {
		return nil, err
	}
	return &echo.EchoResponse{Message: in.Message}, nil
}

// Name returns the name of the subject.
func (*subject) Name() string { return "grpc-go" }

// Run implements rounds.Subject.
func (s *subject) Run(d time.Duration, t *rounds.Times) error {
	return calls.Echo(s.load.Callers, d, callTimeout, t, func(ctx context.Context, compare bool) error {
		out := new(echo.EchoResponse)
		if err := s.conn.Invoke(ctx, method, &echo.EchoRequest{Message: &s.message}, out); err != nil {
			return err
		}
		return calls.Check(len(out.GetMessage()), s.load.Body, !compare || out.GetMessage() == s.message)
	})
}

// Close ends the client and its server.
func (s *subject) Close() error {
	err := s.conn.Close()
	s.server.Stop()
	return errors.Join(err, <-s.served)
}
