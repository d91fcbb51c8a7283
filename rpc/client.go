package rpc

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/kvlane/kvlane/errdefs"
)

// Connections selects how a client uses connections.
type Connections uint8

// The ways to use connections.
const (
	Single Connections = iota // one connection for all calls, which are pipelined
	Pooled                    // a connection for each call at a time; idle ones are kept
	Short                     // a new connection for each call
)

// ClientOptions are the options of a client. Zero values are the defaults.
type ClientOptions struct {
	// Connections selects how connections are used.
	Connections Connections
	// TLS encrypts the connections. nil: they are plain. Without a ServerName the server's
	// certificate is checked for the host of the address.
	TLS *tls.Config
	// RDMA offers the server to use RDMA. nil, or if the server refuses: calls use TCP. It must
	// outlive the client, and is not used with TLS.
	RDMA *RDMA
	// Credential is sent with the first request of each connection.
	Credential []byte
	// MaxIdle limits the idle connections of a pool. Default: 64.
	MaxIdle int
	// DialTimeout limits a connection attempt. After a failed attempt, calls fail immediately for a
	// delay that doubles from MinBackoff to MaxBackoff, give or take 20%. Defaults: 3 s, 50 ms and
	// 5 s.
	DialTimeout, MinBackoff, MaxBackoff time.Duration
	// MaxBodyBytes limits a request or response with its meta and attachment, and a response also
	// after decompression. MaxMetaBytes limits the meta, with all fields. The server has limits of
	// its own for requests.
	MaxBodyBytes, MaxMetaBytes int64
	// MaxUnsentBytes limits the requests that the server has not read. Further calls wait. If the
	// server reads nothing for a second, they fail with Overcrowded.
	MaxUnsentBytes int64
	// Stall limits the time in which a server must send the next 16 KiB of a response or read the
	// next bytes of requests.
	Stall time.Duration
}

func (o *ClientOptions) setDefaults() error {
	setDefault(&o.MaxIdle, 64)
	setDefault(&o.DialTimeout, 3*time.Second)
	setDefault(&o.MinBackoff, 50*time.Millisecond)
	setDefault(&o.MaxBackoff, 5*time.Second)
	setDefault(&o.MaxBodyBytes, DefaultMaxBodyBytes)
	setDefault(&o.MaxMetaBytes, DefaultMaxMetaBytes)
	setDefault(&o.MaxUnsentBytes, DefaultMaxUnsentBytes)
	setDefault(&o.Stall, DefaultStall)
	if o.MaxIdle < 0 || min(o.MaxBodyBytes, o.MaxMetaBytes, o.MaxUnsentBytes) < 0 || min(o.DialTimeout, o.MinBackoff, o.MaxBackoff, o.Stall) < 0 {
		return fmt.Errorf("make rpc client: a limit is negative: %w", errdefs.ErrInvalid)
	}
	if o.Connections > Short {
		return fmt.Errorf("make rpc client: connections %d: %w", o.Connections, errdefs.ErrInvalid)
	}
	return nil
}

// Client calls the methods of one server. It is safe for concurrent use.
type Client struct {
	network, address string
	o                ClientOptions
	lastID           atomic.Int64
	plainUntil       atomic.Int64 // Unix time in nanoseconds until which RDMA is not offered

	ctx    context.Context // of attempts for the single connection; ends with Close
	cancel context.CancelFunc
	group  sync.WaitGroup // these attempts, and readers of connections

	mu      sync.Mutex
	conns   map[*clientConn]struct{}
	single  *clientConn
	dialing *dialAttempt  // for the single connection; nil: none
	idle    []*clientConn // of a pool; the last element was used last
	backoff time.Duration
	retryAt time.Time
	lastErr error
	closed  bool
}

// dialAttempt is an attempt to connect, for which several calls may wait.
type dialAttempt struct {
	done chan struct{} // closed when the fields below are set
	conn *clientConn
	err  error
}

// NewClient returns a client of the server at HOST:PORT or unix:PATH. It connects at the first
// call. It returns ErrInvalid for wrong options and addresses.
func NewClient(address string, o ClientOptions) (*Client, error) {
	if err := o.setDefaults(); err != nil {
		return nil, err
	}
	c := &Client{network: "tcp", address: address, o: o, conns: make(map[*clientConn]struct{})}
	if path, ok := strings.CutPrefix(address, "unix:"); ok {
		if c.network, c.address = "unix", path; path == "" {
			return nil, fmt.Errorf("make rpc client of %q: the path is empty: %w", address, errdefs.ErrInvalid)
		}
	} else if host, _, err := net.SplitHostPort(address); err != nil {
		return nil, fmt.Errorf("make rpc client of %q: not HOST:PORT or unix:PATH: %w", address, errdefs.ErrInvalid)
	} else if o.TLS != nil && o.TLS.ServerName == "" {
		c.o.TLS = o.TLS.Clone()
		c.o.TLS.ServerName = host
	}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	return c, nil
}

// Call calls a method, named SERVICE/METHOD, and waits for the response, which it decodes into out.
// When ctx ends, it returns TimedOut or Canceled, and a late response is dropped. It returns
// BadRequest for a request over the limits of ClientOptions and for messages of nil, without a
// request to the server. All errors are an *Error.
func (c *Client) Call(ctx context.Context, method string, in, out proto.Message, options ...CallOption) error {
	r, err := NewRequest(method, in, options...)
	if err != nil {
		return err
	}
	defer r.Release()
	if err := checkResponse(out); err != nil {
		return err
	}
	response, err := c.Do(ctx, r)
	if err != nil {
		return err
	}
	return response.Decode(out)
}

// Do sends a request and waits for its response. It returns an *Error if there is no response:
// ErrNotSent if the server cannot have received the request, and the errors of Call. An error that
// the server has sent is in the response. The caller must decode or release the response.
func (c *Client) Do(ctx context.Context, r *Request) (Response, error) {
	return c.do(ctx, r, nil)
}

// do is Do. prepare may change the request after its connection was chosen.
func (c *Client) do(ctx context.Context, r *Request, prepare func(*clientConn) error) (Response, error) {
	checkContext(ctx)
	if ctx.Err() != nil {
		return Response{}, callError(ctx, notSent(context.Cause(ctx)))
	}
	conn, err := c.take(ctx)
	if err != nil {
		return Response{}, callError(ctx, notSent(err))
	}
	var p *pendingCall
	if prepare != nil {
		err = prepare(conn)
	}
	if err == nil {
		p, err = conn.start(ctx, r)
	}
	if err == nil {
		err = conn.settle(p, conn.await(ctx, p))
	}
	c.give(conn, err)
	if err != nil {
		return Response{}, callError(ctx, err)
	}
	return Response{p, r, c.o.MaxBodyBytes}, nil
}

// Connect connects to the server if no connection is open. It returns the errors of Call.
func (c *Client) Connect(ctx context.Context) error {
	checkContext(ctx)
	conn, err := c.take(ctx)
	if err == nil {
		c.give(conn, nil)
	}
	return callError(ctx, err)
}

// callError returns err as an *Error.
func callError(ctx context.Context, err error) error {
	var e *Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &e):
		return e
	case errors.Is(err, errdefs.ErrBusy):
		return &Error{Overcrowded, "too many bytes wait for the server", err}
	case timedOut(ctx):
		return &Error{TimedOut, "no response in time", err}
	case ctx.Err() != nil:
		return &Error{Canceled, "the call was cancelled", err}
	}
	return &Error{FailedSocket, "the connection failed", err}
}

// timedOut reports whether the deadline of ctx has passed. A dial with this deadline may fail
// before ctx ends.
func timedOut(ctx context.Context) bool {
	end, ok := ctx.Deadline()
	return ok && !time.Now().Before(end) && !errors.Is(ctx.Err(), context.Canceled)
}

// take returns a connection for a call.
func (c *Client) take(ctx context.Context) (*clientConn, error) {
	if c.o.Connections == Single {
		return c.takeSingle(ctx)
	}
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil, fmt.Errorf("call %s: %w", c.address, errdefs.ErrClosed)
	}
	if n := len(c.idle); n > 0 {
		conn := c.idle[n-1]
		c.idle = c.idle[:n-1]
		c.mu.Unlock()
		return conn, nil
	}
	c.mu.Unlock()
	return c.dial(ctx)
}

// takeSingle returns the connection of all calls. An attempt to connect continues if the call that
// began it ends, so that deadlines that are shorter than the attempt do not prevent the connection.
func (c *Client) takeSingle(ctx context.Context) (*clientConn, error) {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil, fmt.Errorf("call %s: %w", c.address, errdefs.ErrClosed)
	}
	if conn := c.single; conn != nil {
		c.mu.Unlock()
		return conn, nil
	}
	d := c.dialing
	if d == nil {
		d = &dialAttempt{done: make(chan struct{})}
		c.dialing = d
		c.group.Go(func() {
			conn, err := c.dial(c.ctx)
			c.mu.Lock()
			defer c.mu.Unlock()
			d.conn, d.err, c.dialing = conn, err, nil
			if err == nil && conn.usable() {
				c.single = conn
			}
			close(d.done)
		})
	}
	c.mu.Unlock()
	select {
	case <-d.done:
		return d.conn, d.err
	case <-ctx.Done():
		return nil, fmt.Errorf("connect to %s: %w", c.address, context.Cause(ctx))
	}
}

// dial connects. It fails during the delay after a failed attempt.
func (c *Client) dial(ctx context.Context) (*clientConn, error) {
	c.mu.Lock()
	if left := time.Until(c.retryAt); left > 0 {
		err := c.lastErr
		c.mu.Unlock()
		return nil, fmt.Errorf("connect to %s: next attempt in %v: %w", c.address, left.Round(time.Millisecond), err)
	}
	c.mu.Unlock()
	dialCtx, cancel := context.WithTimeout(ctx, c.o.DialTimeout)
	defer cancel()
	raw, err := (&net.Dialer{}).DialContext(dialCtx, c.network, c.address)
	if err == nil && c.o.TLS != nil {
		secured := tls.Client(raw, c.o.TLS)
		if err = secured.HandshakeContext(dialCtx); err != nil {
			_ = raw.Close() // the handshake failed
		}
		raw = secured
	}
	var t transport
	if err == nil {
		if t, err = c.negotiate(dialCtx, raw); err != nil {
			_ = raw.Close() // the handshake failed
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		if ctx.Err() == nil { // the server's fault
			c.backoff = min(max(2*c.backoff, c.o.MinBackoff), c.o.MaxBackoff)
			jittered := time.Duration(float64(c.backoff) * (0.8 + 0.4*rand.Float64()))
			c.retryAt, c.lastErr = time.Now().Add(jittered), err
		}
		return nil, fmt.Errorf("connect to %s: %w", c.address, err)
	}
	c.backoff = 0
	if c.closed {
		_ = raw.Close() // not used
		if t != nil {
			t.close(errdefs.ErrClosed)
		}
		return nil, fmt.Errorf("call %s: %w", c.address, errdefs.ErrClosed)
	}
	conn := newClientConn(c, raw)
	conn.out.transport = t
	c.conns[conn] = struct{}{}
	c.group.Add(1)
	go conn.run()
	return conn, nil
}

// give returns a connection to the pool after a call that ended with err, or closes it.
func (c *Client) give(conn *clientConn, err error) {
	if c.o.Connections == Single {
		return
	}
	c.mu.Lock()
	if c.o.Connections == Pooled && err == nil && !c.closed && len(c.idle) < c.o.MaxIdle && conn.usable() {
		c.idle = append(c.idle, conn)
		c.mu.Unlock()
		return
	}
	c.mu.Unlock()
	conn.close(errdefs.ErrClosed) // its response may still arrive, or it is not needed
}

// forget removes a connection that has ended.
func (c *Client) forget(conn *clientConn) {
	c.retire(conn)
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.conns, conn)
}

// retire makes later calls use other connections.
func (c *Client) retire(conn *clientConn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.single == conn {
		c.single = nil
	}
	for i, o := range c.idle {
		if o == conn {
			c.idle = append(c.idle[:i], c.idle[i+1:]...)
			break
		}
	}
}

// Close closes all connections. Calls in progress fail with FailedSocket. Later calls of Close do
// nothing.
func (c *Client) Close() error {
	c.cancel()
	c.mu.Lock()
	c.closed = true
	conns := make([]*clientConn, 0, len(c.conns))
	for conn := range c.conns {
		conns = append(conns, conn)
	}
	c.mu.Unlock()
	for _, conn := range conns {
		conn.close(errdefs.ErrClosed)
	}
	c.group.Wait()
	return nil
}
