// Package gateway lets clients of a block server use RDMA. A session stands between the connection
// of a client and that of the server, which sees a client without RDMA.
//
// Frames of the connection are forwarded. A client attaches a queue pair, and sends requests with
// addresses through it. The gateway reads the bytes of a store from the client's memory to its own
// slots, and forwards them behind the request. It writes the bytes of a retrieve from its slots to
// the client's memory, then the result to the flag of the request, and at last the completion word,
// whose immediate is the number of the request. A client reaches no memory of the server.
//
// All requests on a queue pair are in order. Before the result of a cancellation is forwarded, all
// writes have completed, and a read after them has returned.
package gateway

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/rdma"
	"github.com/kvlane/kvlane/rdma/registry"
)

// Defaults of Options.
const (
	DefaultSlots     = 256
	DefaultSlotBytes = 64 << 10
)

// access are the rights to memory of the gateway. Peers have none.
const access = rdma.AccessLocalWrite

// Options are the options of a Gateway.
type Options struct {
	// NIC has the gateway's memory. The caller closes it after the gateway. Required.
	NIC *registry.Registry
	// Connect has the options of connections: see channel.Options.
	Connect rdma.ConnectOptions
	// Kind is the kind of memory that Memory allocates: host or host-pinned. Memory is required.
	Kind   mem.Kind
	Memory mem.BufferHooks
	// Slots and SlotBytes are the slots of all sessions, through which bytes of blocks pass. Zero:
	// the defaults.
	Slots     int
	SlotBytes int64
}

// Stats has counters since the gateway was made.
type Stats struct {
	Attached int64 // queue pairs
	Denied   int64 // attaches of clients that may not use RDMA
	Requests int64 // by RDMA
	Refused  int64 // sessions that ended with a request that is not valid or a failure of the NIC
}

// Gateway has the slots of all sessions. All methods are safe for concurrent use.
type Gateway struct {
	o           Options
	small, data *mem.Buffers // a slot is zeroed for each use, so flags have small ones
	sessions    sync.WaitGroup

	mu   sync.Mutex
	left []*mem.Buffers // receives of ended sessions that are not freed

	attached, denied, requests, refused atomic.Int64
}

// New returns a gateway. It returns ErrInvalid for options out of range.
func New(o Options) (*Gateway, error) {
	o.Slots, o.SlotBytes = cmp.Or(o.Slots, DefaultSlots), cmp.Or(o.SlotBytes, DefaultSlotBytes)
	if o.NIC == nil || o.Memory.Alloc == nil || o.SlotBytes < smallBytes {
		return nil, fmt.Errorf("make gateway without a NIC or memory, or with slots of %d bytes: %w", o.SlotBytes, errdefs.ErrInvalid)
	}
	g := &Gateway{o: o}
	var err error
	if g.data, err = g.buffers(int64(o.Slots), o.SlotBytes); err != nil {
		return nil, err
	}
	if g.small, err = g.buffers(int64(o.Slots), smallBytes); err != nil {
		return nil, errors.Join(err, g.data.Close(context.Background()))
	}
	return g, nil
}

// free frees the receives of ended sessions, and more of them. Those that a step of freeing fails for
// stay until the next call.
func (g *Gateway) free(ctx context.Context, more ...*mem.Buffers) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	all := append(g.left, more...)
	g.left = nil
	var errs []error
	for _, b := range all {
		if err := b.Close(ctx); err != nil {
			g.left, errs = append(g.left, b), append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// slot is a lent buffer.
type slot struct {
	mem.Buffer
	pool *mem.Buffers
}

// acquire lends a slot of n bytes. With try it returns ErrBusy if there is none.
func (g *Gateway) acquire(ctx context.Context, n int64, try bool) (s slot, err error) {
	if s.pool = g.data; n <= smallBytes {
		s.pool = g.small
	}
	if try {
		s.Buffer, err = s.pool.TryAcquire(n)
	} else {
		s.Buffer, err = s.pool.Acquire(ctx, n)
	}
	return s, err
}

func (s slot) release() error { return s.pool.Release(s.Buffer) }

func (s slot) bytes() ([]byte, error) {
	e, err := s.pool.Extent(s.Buffer)
	return e.Bytes(), err
}

// buffers returns registered memory.
func (g *Gateway) buffers(count, bytes int64) (*mem.Buffers, error) {
	h, nic := g.o.Memory, g.o.NIC
	h.Register = func(r *mem.Region) (uint32, error) {
		if err := nic.Register(rdma.MROptions{Access: access}, r); err != nil {
			return 0, err
		}
		held, err := nic.Acquire(mem.All(r), access)
		if err != nil {
			return 0, err
		}
		defer held.Release() // Buffers keep it registered
		return held.Info().LKey, nil
	}
	h.Deregister = func(ctx context.Context, r *mem.Region) error {
		return registry.Unregister(ctx, []*registry.Registry{nic}, r)
	}
	return mem.NewBuffers(mem.BufferOptions{Kind: g.o.Kind, Count: count, Capacity: bytes, Hooks: h})
}

// sge returns the entry of the bytes from off to off+n of a buffer.
func sge(b mem.Buffer, off, n int64) rdma.SGE {
	addr := uint64(b.Dev)
	if addr == 0 {
		addr = uint64(b.CPU)
	}
	return rdma.SGE{Addr: addr + uint64(off), Length: uint32(n), LKey: b.Key}
}

// Stats returns the counters.
func (g *Gateway) Stats() Stats {
	return Stats{Attached: g.attached.Load(), Denied: g.denied.Load(), Requests: g.requests.Load(), Refused: g.refused.Load()}
}

// Buffers returns sources of the statistics of the gateway's buffers: "data" for bytes of blocks,
// and "small" for flags and short pieces.
func (g *Gateway) Buffers() map[string]func() mem.BufferStats {
	return map[string]func() mem.BufferStats{"data": g.data.Stats, "small": g.small.Stats}
}

// Open starts a session for the connection of a client, and returns the connection for the server.
// The session ends when one of both is closed, and closes the other. The client may use RDMA if
// allow is true: its connection must be authenticated, because only that protects its queue pair.
// The bytes that RDMA moves are not encrypted.
func (g *Gateway) Open(nc net.Conn, allow bool) net.Conn {
	pipe, inner := net.Pipe()
	s := newSession(g, nc, inner, allow)
	outer := &outerConn{Conn: pipe, ended: make(chan struct{})}
	g.sessions.Go(func() {
		defer close(outer.ended)
		s.run()
	})
	if t, ok := nc.(*tls.Conn); ok {
		return &tlsConn{outer, t}
	}
	return outer
}

// outerConn is the server's end of a session.
type outerConn struct {
	net.Conn
	ended chan struct{}
}

// Close closes the connection, and waits until the session has ended. Frames that were written
// before are forwarded.
func (c *outerConn) Close() error {
	err := c.Conn.Close()
	<-c.ended
	return err
}

// tlsConn is the server's end of a session whose client uses TLS.
type tlsConn struct {
	*outerConn
	client *tls.Conn
}

// ConnectionState returns that of the client's connection.
func (c *tlsConn) ConnectionState() tls.ConnectionState { return c.client.ConnectionState() }

// Close waits for the end of all sessions, whose connections the caller has closed, and frees the
// memory. It returns ErrBusy if ctx ends before, and may be called again.
func (g *Gateway) Close(ctx context.Context) error {
	ended := make(chan struct{})
	go func() {
		g.sessions.Wait()
		close(ended)
	}()
	select {
	case <-ended:
		return errors.Join(g.free(ctx), g.small.Close(ctx), g.data.Close(ctx))
	case <-ctx.Done():
		return errors.Join(fmt.Errorf("close gateway: sessions are open: %w", errdefs.ErrBusy), context.Cause(ctx))
	}
}
