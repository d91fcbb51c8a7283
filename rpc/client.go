package rpc

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
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
	// TLS encrypts the connections. nil: they are plain.
	TLS *tls.Config
	// Credential is sent with the first request of each connection.
	Credential []byte
	// MaxIdle limits the idle connections of a pool. Default: 64.
	MaxIdle int
	// DialTimeout limits a connection attempt. After a failed attempt, calls fail immediately for a
	// delay that doubles from MinBackoff to MaxBackoff. Defaults: 3 s, 50 ms and 5 s.
	DialTimeout, MinBackoff, MaxBackoff time.Duration
	// MaxBodyBytes limits a response with its attachment, before and after decompression, and
	// MaxMetaBytes its meta.
	MaxBodyBytes, MaxMetaBytes int64
	// MaxUnsentBytes limits the requests that the server has not read. Further calls fail with
	// Overcrowded.
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

	mu      sync.Mutex
	conns   map[*clientConn]struct{}
	single  *clientConn
	idle    []*clientConn // of a pool; the last element was used last
	dialing chan struct{} // closed when the attempt for the single connection has ended
	backoff time.Duration
	retryAt time.Time
	lastErr error
	closed  bool
	group   sync.WaitGroup // readers of connections
}

// NewClient returns a client of the server at HOST:PORT or unix:PATH. It connects at the first
// call. It returns ErrInvalid for wrong options and addresses.
func NewClient(address string, o ClientOptions) (*Client, error) {
	if err := o.setDefaults(); err != nil {
		return nil, err
	}
	c := &Client{network: "tcp", address: address, o: o, conns: make(map[*clientConn]struct{})}
	if path, ok := strings.CutPrefix(address, "unix:"); ok {
		c.network, c.address = "unix", path
	} else if _, _, err := net.SplitHostPort(address); err != nil {
		return nil, fmt.Errorf("make rpc client of %q: not HOST:PORT or unix:PATH: %w", address, errdefs.ErrInvalid)
	}
	return c, nil
}

// Call calls a method, named SERVICE/METHOD, and waits for the response, which it decodes into out.
// When ctx ends, it returns TimedOut or Canceled, and a late response is dropped. All errors are an
// *Error.
func (c *Client) Call(ctx context.Context, method string, in, out proto.Message, options ...CallOption) error {
	return c.call(ctx, method, in, out, options, nil)
}

// call makes a call. prepare may change its options after its connection was chosen.
func (c *Client) call(ctx context.Context, method string, in, out proto.Message, options []CallOption, prepare func(*clientConn, *callOptions) error) error {
	var o callOptions
	for _, set := range options {
		set(&o)
	}
	defer o.attachment.Release()
	service, name, ok := strings.Cut(method, "/")
	if !ok || service == "" || name == "" {
		return &Error{BadRequest, fmt.Sprintf("method %q is not SERVICE/METHOD", method), errdefs.ErrInvalid}
	}
	conn, err := c.take(ctx)
	if err != nil {
		return callError(ctx, err)
	}
	var p *pendingCall
	if prepare != nil {
		err = prepare(conn, &o)
	}
	if err == nil {
		p, err = conn.start(ctx, service, name, in, &o)
	}
	if err == nil {
		err = conn.await(ctx, p)
	}
	c.give(conn, err)
	if err == nil {
		err = p.finish(out, &o, c.o.MaxBodyBytes)
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
	case errors.Is(context.Cause(ctx), context.DeadlineExceeded) || errors.Is(err, context.DeadlineExceeded):
		return &Error{TimedOut, "no response in time", err}
	case ctx.Err() != nil:
		return &Error{Canceled, "the call was cancelled", err}
	}
	return &Error{FailedSocket, "the connection failed", err}
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

// takeSingle returns the connection of all calls. One call at a time connects.
func (c *Client) takeSingle(ctx context.Context) (*clientConn, error) {
	for {
		c.mu.Lock()
		switch {
		case c.closed:
			c.mu.Unlock()
			return nil, fmt.Errorf("call %s: %w", c.address, errdefs.ErrClosed)
		case c.single != nil:
			defer c.mu.Unlock()
			return c.single, nil
		case c.dialing == nil:
			c.dialing = make(chan struct{})
			c.mu.Unlock()
			conn, err := c.dial(ctx)
			c.mu.Lock()
			defer c.mu.Unlock()
			close(c.dialing)
			c.dialing = nil
			if err == nil && !conn.broken() {
				c.single = conn
			}
			return conn, err
		}
		wait := c.dialing
		c.mu.Unlock()
		select {
		case <-wait:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
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
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		if ctx.Err() == nil { // the server's fault
			c.backoff = min(max(2*c.backoff, c.o.MinBackoff), c.o.MaxBackoff)
			c.retryAt, c.lastErr = time.Now().Add(c.backoff), err
		}
		return nil, fmt.Errorf("connect to %s: %w", c.address, err)
	}
	c.backoff = 0
	if c.closed {
		_ = raw.Close() // not used
		return nil, fmt.Errorf("call %s: %w", c.address, errdefs.ErrClosed)
	}
	conn := newClientConn(c, raw)
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
	if c.o.Connections == Pooled && err == nil && !c.closed && len(c.idle) < c.o.MaxIdle && !conn.broken() {
		c.idle = append(c.idle, conn)
		c.mu.Unlock()
		return
	}
	c.mu.Unlock()
	conn.close(errdefs.ErrClosed) // its response may still arrive, or it is not needed
}

// forget removes a connection that has ended.
func (c *Client) forget(conn *clientConn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.conns, conn)
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
