package blockio

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/wire"
)

// Defaults of ClientOptions.
const (
	DefaultBatchEntries = 64
	DefaultBatchBytes   = 16 << 20
	DefaultRetries      = 2
	DefaultTimeout      = 10 * time.Second
	retryDelay          = 5 * time.Millisecond // doubles with each retry
)

// ClientOptions are the options of a Client.
type ClientOptions struct {
	// Dial opens a connection to the server: TCP, or TLS over it. Required.
	Dial func(ctx context.Context) (net.Conn, error)
	// Token are the credentials, if the server wants a token.
	Token []byte
	// Formats are the identities that the client uses, with their layouts.
	Formats []Format
	// Limits are proposed to the server. Zero: DefaultLimits.
	Limits Limits
	// BatchEntries and BatchBytes bound the sub-batches of a store or retrieve, within the limits.
	// Zero: the defaults.
	BatchEntries int
	BatchBytes   uint64
	// Retries is the number of additional attempts for entries whose server was busy or lost. Zero:
	// DefaultRetries. Negative: none.
	Retries int
	// Timeout is the time for calls whose context has no deadline. Zero: DefaultTimeout.
	Timeout time.Duration
	// Replicas is called when a server reports that a run is hot, with the number of servers that are
	// to have it. It must not block. Nil: reports are ignored.
	Replicas func(run uint32, servers int)
	// Epoch returns the epoch of the client's list of servers; 0: it has none. If the server's list
	// is newer it refuses the connection. The client then calls Refresh with the server's epoch and
	// tries once more, without an epoch if Epoch is still earlier. Nil: no epoch.
	Epoch   func() uint64
	Refresh func(ctx context.Context, epoch uint64) error
	// Newer is called with the server's epoch when a result has one, because the server's list changed
	// after the hello. It must not block. Nil: the epoch is ignored.
	Newer func(epoch uint64)
	// Connected is called after each hello. It must not block. Nil: no call.
	Connected func(Greeting)
	// RDMA lets the server access memory. Nil: bytes are sent over the connection.
	RDMA *RDMAOptions
}

// Greeting is how a server describes itself in the result of a hello.
type Greeting struct {
	Boot [16]byte // another value after each start of the server
	Zone string   // empty: unknown
}

// ClientStats has counters since the client was made.
type ClientStats struct {
	Connections   int64 // opened
	Restarts      int64 // of the server between two connections
	Batches       int64 // sub-batches and other requests
	Retries       int64 // entries and other requests that were sent again
	Fences        int64 // requests that ended by a fence
	FenceTimeouts int64 // fences that closed the connection
	Corrupt       int64 // entries whose checksum was wrong
	Remote        int64 // sub-batches that were sent by RDMA
	RemoteRefused int64 // connections without RDMA, because the server or the NIC refused it
	RemoteMissed  int64 // sub-batches that were sent over the socket of a connection with RDMA
	Refusal       error // last reason of RemoteRefused
}

// Client stores and retrieves pieces of blocks at a server, over one connection at a time. It opens
// a connection for the first call, and another one for the first call after a connection has ended.
// All methods are safe for concurrent use.
//
// A call ends when its context ends, at most 200 ms later. Memory of a call is not accessed any
// more when it has returned. Calls whose context has ended return ErrCanceled.
type Client struct {
	o      ClientOptions
	client [16]byte
	slots  *slots        // nil: without RDMA
	dial   chan struct{} // buffers one; held while the connection is replaced

	mu      sync.Mutex
	conn    *conn
	closed  bool
	refused int64           // connections without RDMA
	refusal error           // reason of the last one
	shared  context.Context // of calls without a deadline

	batchPool sync.Pool // of *batch

	connections, restarts, batches, retries, fences, fenceTimeouts, corrupt atomic.Int64
}

// NewClient returns a client. It does not connect. It returns ErrInvalid for options out of range.
func NewClient(o ClientOptions) (*Client, error) {
	o.BatchEntries, o.BatchBytes = cmp.Or(o.BatchEntries, DefaultBatchEntries), cmp.Or(o.BatchBytes, DefaultBatchBytes)
	o.Retries, o.Timeout = cmp.Or(o.Retries, DefaultRetries), cmp.Or(o.Timeout, DefaultTimeout)
	if o.Limits == (Limits{}) {
		o.Limits = DefaultLimits()
	}
	if o.Dial == nil || o.BatchEntries < 0 || o.Timeout < 0 {
		return nil, invalid("make client with batches of %d entries and a timeout of %v", o.BatchEntries, o.Timeout)
	}
	c := &Client{o: o, dial: make(chan struct{}, 1)}
	if _, err := rand.Read(c.client[:]); err != nil {
		return nil, fmt.Errorf("number the client: %w", err)
	}
	if err := c.hello(context.Background()).Validate(); err != nil {
		return nil, err
	}
	if o.RDMA != nil {
		var err error
		if c.slots, err = openSlots(&c.o); err != nil {
			return nil, fmt.Errorf("make client with RDMA: %w", err)
		}
	}
	return c, nil
}

func (c *Client) hello(ctx context.Context) *Hello {
	var epoch uint64
	if c.o.Epoch != nil {
		epoch = c.o.Epoch()
	}
	return &Hello{
		Epoch: epoch, ID: 1, RemainingMillis: uint32(min(max(time.Until(c.deadline(ctx)).Milliseconds(), 1), MaxMillis)),
		Client: c.client, Limits: c.o.Limits, Token: c.o.Token, Formats: c.o.Formats,
	}
}

func (c *Client) deadline(ctx context.Context) time.Time {
	if end, ok := ctx.Deadline(); ok {
		return end
	}
	return time.Now().Add(c.o.Timeout)
}

// bound returns ctx with a deadline. Contexts that never end are replaced by a shared one, which
// ends after 0.9 to 1 times the timeout.
func (c *Client) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return ctx, func() {}
	}
	if ctx.Done() != nil {
		return context.WithTimeout(ctx, c.o.Timeout)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.shared != nil {
		if end, _ := c.shared.Deadline(); time.Until(end) > c.o.Timeout/10*9 {
			return c.shared, func() {}
		}
	}
	var cancel context.CancelFunc
	c.shared, cancel = context.WithTimeout(context.Background(), c.o.Timeout)
	_ = cancel // other calls use the context, which ends by itself
	return c.shared, func() {}
}

// Stats returns the counters.
func (c *Client) Stats() ClientStats {
	s := ClientStats{
		Connections: c.connections.Load(), Restarts: c.restarts.Load(), Batches: c.batches.Load(), Retries: c.retries.Load(), Fences: c.fences.Load(),
		FenceTimeouts: c.fenceTimeouts.Load(), Corrupt: c.corrupt.Load(),
	}
	if c.slots != nil {
		s.Remote, s.RemoteMissed = c.slots.sent.Load(), c.slots.missed.Load()
		c.mu.Lock()
		s.RemoteRefused, s.Refusal = c.refused, c.refusal
		c.mu.Unlock()
	}
	return s
}

// Close closes the connection. Calls in progress fail with ErrClosed, and their memory is not
// accessed any more when Close returns nil. It returns ErrBusy if ctx ends before.
func (c *Client) Close(ctx context.Context) error {
	c.mu.Lock()
	c.closed = true
	conn := c.conn
	c.mu.Unlock()
	if conn == nil {
		return c.slots.close(ctx)
	}
	conn.fail(nil)
	select {
	case <-conn.ended:
		return c.slots.close(ctx)
	case <-ctx.Done():
		return fmt.Errorf("close client of block server: %w: %w", errdefs.ErrBusy, context.Cause(ctx))
	}
}

// current returns the open connection, or nil. It returns the last one too, and ErrClosed after
// Close.
func (c *Client) current() (open, last *conn, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed:
		return nil, c.conn, fmt.Errorf("use client of block server: %w", errdefs.ErrClosed)
	case c.conn != nil && c.conn.failure() == nil:
		return c.conn, c.conn, nil
	}
	return nil, c.conn, nil
}

// connect returns the open connection. If there is none it opens one, after the last one has ended.
func (c *Client) connect(ctx context.Context) (*conn, error) {
	if open, _, err := c.current(); open != nil || err != nil {
		return open, err
	}
	select {
	case c.dial <- struct{}{}:
		defer func() { <-c.dial }()
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for the connection to the block server: %w: %w", errdefs.ErrCanceled, context.Cause(ctx))
	}
	open, last, err := c.current()
	if open != nil || err != nil {
		return open, err
	}
	if last != nil {
		select {
		case <-last.ended:
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for the end of a connection: %w: %w", errdefs.ErrCanceled, context.Cause(ctx))
		}
	}
	conn, err := c.open(ctx, c.hello(ctx))
	var stale *StaleError
	if errors.As(err, &stale) && c.o.Refresh != nil {
		_ = c.o.Refresh(ctx, stale.Epoch) // after a failure the epoch is as before
		h := c.hello(ctx)
		if h.Epoch < stale.Epoch {
			h.Epoch = 0
		}
		conn, err = c.open(ctx, h)
	}
	if err != nil && !wire.Answered(err) {
		return nil, lostError{err}
	}
	if err != nil {
		return nil, err
	}
	c.connections.Add(1)
	if last != nil && last.boot != conn.boot {
		c.restarts.Add(1)
	}
	if c.o.Connected != nil {
		c.o.Connected(Greeting{conn.boot, conn.zone})
	}
	c.mu.Lock()
	c.conn = conn
	if conn.refusal != nil {
		c.refused, c.refusal = c.refused+1, conn.refusal
	}
	closed := c.closed
	c.mu.Unlock()
	if closed {
		conn.fail(nil)
		<-conn.ended
		return nil, errConnClosed
	}
	return conn, nil
}

// open opens a connection.
func (c *Client) open(ctx context.Context, h *Hello) (*conn, error) {
	nc, err := c.o.Dial(ctx)
	if err != nil {
		return nil, fmt.Errorf("dial block server: %w", err)
	}
	return openConn(ctx, nc, h, c.slots, c.o.Newer)
}

// wait waits for a call and counts its fence.
func (c *Client) wait(ctx context.Context, conn *conn, k *call) error {
	fenced, err := conn.wait(ctx, k)
	if fenced {
		c.fences.Add(1)
	}
	if fenced && errors.Is(conn.failure(), errNoFence) {
		c.fenceTimeouts.Add(1)
	}
	return err
}

// retry reports whether an attempt that ended with err is worth another one, and waits before it.
func (c *Client) retry(ctx context.Context, attempt int, err error) bool {
	if attempt >= c.o.Retries || !retryable(err) {
		return false
	}
	timer := time.NewTimer(retryDelay << attempt)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// retryable reports whether the same request may succeed later: the server was busy, or lost.
func retryable(err error) bool {
	if err == nil {
		return false
	}
	var lost lostError
	return errors.Is(err, errdefs.ErrBusy) || errors.As(err, &lost) && !errors.Is(err, errConnClosed) && !errors.Is(err, errdefs.ErrCanceled)
}

// do sends a request that may be sent again, and returns its result and connection.
func (c *Client) do(ctx context.Context, q Request) (*Result, *conn, error) {
	for attempt := 0; ; attempt++ {
		k := &call{request: q, ctx: ctx, deadline: c.deadline(ctx)}
		k.request.Run = runOf(ctx, q.Op)
		k.request.Phase = attempt&1 == 1
		conn, err := c.connect(ctx)
		if err == nil {
			err = c.one(ctx, conn, k)
		}
		if err == nil {
			return &k.result, conn, nil
		}
		if !c.retry(ctx, attempt, err) {
			return nil, nil, err
		}
		c.retries.Add(1)
	}
}

// one sends a request once.
func (c *Client) one(ctx context.Context, conn *conn, k *call) error {
	c.batches.Add(1)
	err := conn.start(k)
	if err == nil {
		err = c.wait(ctx, conn, k)
	}
	if err == nil {
		c.reportReplicas(k)
	}
	if err == nil && k.result.Status != StatusPartial {
		err = k.result.Status.Err()
	}
	if err != nil {
		return fmt.Errorf("block server: %v: %w", k.request.Op, err)
	}
	return nil
}

type runKey struct{}

// WithRun returns a context for calls about a run, by which the server counts them. run is not
// zero.
func WithRun(ctx context.Context, run uint32) context.Context {
	return context.WithValue(ctx, runKey{}, run)
}

// runOf returns the run of ctx for requests of an operation that have one, and else zero.
func runOf(ctx context.Context, op Op) uint32 {
	if !reads(op) {
		return 0
	}
	run, _ := ctx.Value(runKey{}).(uint32)
	return run
}

// reportReplicas reports a hot run of a result.
func (c *Client) reportReplicas(k *call) {
	if k.result.Replicas != 0 && c.o.Replicas != nil {
		c.o.Replicas(k.request.Run, int(k.result.Replicas))
	}
}
