package calls

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/kvlane/kvlane/bench/rounds"
	"github.com/kvlane/kvlane/bench/sockets"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/rpc"
	"github.com/kvlane/kvlane/rpc/chain"
	"github.com/kvlane/kvlane/rpc/echo"
)

// Names of subjects.
const (
	Sockets = sockets.Name // bare sockets that return the bytes they receive
	RPC     = "rpc"        // a client of package rpc
)

// Service returns example.EchoService. It returns messages and attachments as they are, without a
// copy of the attachment.
func Service() *rpc.Service { return echo.NewEchoService(service{}) }

type service struct{}

func (service) Echo(ctx context.Context, in *echo.EchoRequest) (*echo.EchoResponse, error) {
	c := rpc.FromContext(ctx)
	c.Reply.Attachment = c.Attachment.Cut(c.Attachment.Len())
	return &echo.EchoResponse{Message: in.Message}, nil
}

// Pattern returns n bytes of ASCII text.
func Pattern(n int64) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte('a' + i%23)
	}
	return b
}

// client calls an echo server.
type client struct {
	*rpc.Client
	stub    *echo.EchoServiceStub
	server  *rpc.Server // nil: elsewhere
	served  chan error
	load    Load
	timeout time.Duration
	want    []byte // the body or the attachment
	message string
}

// rpc opens the subject RPC. The server is in this process, or at the address.
func (o *Options) rpc(ctx context.Context, l Load) (_ Subject, err error) {
	c := &client{load: l, timeout: o.Timeout, want: Pattern(l.Body + l.Attachment)}
	if l.Attachment == 0 {
		c.message = string(c.want)
	}
	address := o.Address
	if address == "" {
		if address, err = c.serve(ctx); err != nil {
			return nil, err
		}
	}
	if c.Client, err = rpc.NewClient(address, o.Client); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	c.stub = echo.NewEchoServiceStub(c.Client)
	return c, nil
}

// serve starts a server and returns its address.
func (c *client) serve(ctx context.Context) (string, error) {
	s, err := rpc.NewServer(rpc.ServerOptions{})
	if err != nil {
		return "", err
	}
	if err := s.Register(Service()); err != nil {
		return "", errors.Join(err, s.Close())
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", errors.Join(err, s.Close())
	}
	c.server, c.served = s, make(chan error, 1)
	go func() { c.served <- s.Serve(listener) }()
	return listener.Addr().String(), nil
}

// Name returns the name of the subject.
func (*client) Name() string { return RPC }

// Run implements rounds.Subject. All bytes of a caller's first response are compared, and the
// lengths of the others.
func (c *client) Run(d time.Duration, t *rounds.Times) error {
	return Echo(c.load.Callers, d, c.timeout, t, c.call)
}

// Echo makes calls for a duration, by a goroutine for each caller. Each has its own context, which
// ends timeout later. compare is set in the first call of a goroutine.
func Echo(callers int, d, timeout time.Duration, t *rounds.Times, call func(ctx context.Context, compare bool) error) error {
	contexts := make([]context.Context, callers)
	for i := range contexts {
		ctx, cancel := context.WithTimeout(context.Background(), d+timeout)
		defer cancel()
		contexts[i] = ctx
	}
	return rounds.Parallel(callers, d, t, func(i int, first bool) error { return call(contexts[i], first) })
}

func (c *client) call(ctx context.Context, compare bool) error {
	in := &echo.EchoRequest{Message: &c.message}
	if c.load.Attachment == 0 {
		out, err := c.stub.Echo(ctx, in)
		if err != nil {
			return err
		}
		return Check(len(out.GetMessage()), c.load.Body, !compare || out.GetMessage() == c.message)
	}
	var got chain.Chain
	defer got.Release()
	if _, err := c.stub.Echo(ctx, in, rpc.WithAttachment(chain.OfBytes(c.want)), rpc.ReceiveAttachment(&got)); err != nil {
		return err
	}
	equal := true
	if compare {
		b, err := got.Bytes()
		if err != nil {
			return err
		}
		equal = bytes.Equal(b, c.want)
	}
	return Check(int(got.Len()), c.load.Attachment, equal)
}

// Check returns ErrCorrupt for a response with another length or other bytes than its request.
func Check(got int, want int64, equal bool) error {
	if int64(got) != want || !equal {
		return fmt.Errorf("a response has other bytes than its request: %d of %d: %w", got, want, errdefs.ErrCorrupt)
	}
	return nil
}

// Close ends the client and its server.
func (c *client) Close() error {
	var errs []error
	if c.Client != nil {
		errs = append(errs, c.Client.Close())
	}
	if c.server != nil {
		errs = append(errs, c.server.Close(), <-c.served)
	}
	return errors.Join(errs...)
}

// pipelined is the number of bytes up to which sockets have all requests in progress on one
// connection, as rpc has. Otherwise each caller has a connection, since a client that writes more
// than the buffers hold before it reads would never return.
const pipelined = 256 << 10

// connections are bare sockets.
type connections []*sockets.Sockets

// openSockets opens the subject Sockets. Reads are as long as the blocks into which rpc reads.
func openSockets(ctx context.Context, l Load) (Subject, error) {
	frame := Pattern(l.Body + l.Attachment)
	n, depth := l.Callers, 1
	if len(frame)*l.Callers <= pipelined {
		n, depth = 1, l.Callers
	}
	var all connections
	for range n {
		first := true
		s, err := sockets.Open(ctx, sockets.Options{Request: frame, Depth: depth, MaxRead: chain.MaxBytes, Check: func(b []byte) error {
			equal := !first || bytes.Equal(b, frame)
			first = false
			return Check(len(b), int64(len(frame)), equal)
		}})
		if err != nil {
			return nil, errors.Join(err, all.Close())
		}
		all = append(all, s)
	}
	return all, nil
}

// Name returns the name of the subject.
func (connections) Name() string { return Sockets }

// Run implements rounds.Subject.
func (c connections) Run(d time.Duration, t *rounds.Times) error {
	if len(c) == 1 {
		return c[0].Run(d, t)
	}
	return rounds.Concurrent(len(c), t, func(i int, t *rounds.Times) error { return c[i].Run(d, t) })
}

// Close closes all connections.
func (c connections) Close() error {
	var errs []error
	for _, s := range c {
		errs = append(errs, s.Close())
	}
	return errors.Join(errs...)
}
