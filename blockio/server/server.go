// Package server serves the block protocol over TCP and TLS, from a pool of host memory and from
// disk.
//
// A connection has a goroutine that reads requests, and receives stored bytes into their place, and
// one that sends results, with the bytes of retrieved blocks straight from the pool. Blocks are
// stored for each tenant and identity. The tenant comes from the credentials alone. A result is
// sent for every request. The result of a cancellation follows all bytes of the cancelled request.
// A request that needs the disk has a goroutine, and its result does not delay that of others.
package server

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvlane/kvlane/blockio"
	"github.com/kvlane/kvlane/blockio/gateway"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/auth"
	"github.com/kvlane/kvlane/internal/blockhost"
	"github.com/kvlane/kvlane/internal/hotrun"
	"github.com/kvlane/kvlane/internal/journal"
	"github.com/kvlane/kvlane/wire"
)

const (
	// DefaultConnections is the default of Options.Connections.
	DefaultConnections = 256
	maxHellos          = 256 // connections without a credential yet, with at most blockio.MaxHelloBytes each
	helloTimeout       = 5 * time.Second
	lostAfter          = 3 // keep-alive times without a frame
	// DefaultLeaseMax is the default of Options.LeaseMax.
	DefaultLeaseMax = time.Minute
	maxLeases       = 1024
	// DefaultSlowAfter is the default of Options.SlowAfter.
	DefaultSlowAfter = 100 * time.Millisecond
)

// Options are the options of a Server.
type Options struct {
	// Host has the blocks. The caller closes it after the server. Required.
	Host *blockhost.Host
	// Auth decides on credentials and addresses. Required.
	Auth *auth.Server
	// Limits bound those of connections. Zero: the defaults of clients.
	Limits blockio.Limits
	// Connections bounds the connections at a time, in addition to those whose credential is not
	// known yet. If clients have credentials, a tenant has at most three times as many as are free
	// then: one tenant three quarters of all. Others are refused as blockio.StatusBusy. Zero:
	// DefaultConnections.
	Connections int
	// LeaseMax bounds the time of a lease and of each renewal. Zero: DefaultLeaseMax.
	LeaseMax time.Duration
	// HotRate is the number of reads for each second from which a run may be hot. Zero:
	// hotrun.DefaultRate.
	HotRate int
	// RDMA lets clients of authenticated connections use RDMA. The caller closes it after the
	// server. Nil: no client does.
	RDMA *gateway.Gateway
	// Epoch returns the epoch of the last change of the list of servers; 0: unknown. Clients whose
	// list is older are refused with it. Those that are connected have it in results. Nil: unknown.
	Epoch func() uint64
	// Zone is the zone of the server, which is in the results of hellos. Empty: unknown.
	Zone string
	// LoopbackRDMA lets clients without credentials use RDMA too, if the server listens on a loopback
	// address. It is for measurements.
	LoopbackRDMA bool
	// Journal collects retrieves and stores that take SlowAfter or longer, from the arrival of the
	// request until its result is sent. Nil: none.
	Journal *journal.Journal
	// SlowAfter has the default DefaultSlowAfter.
	SlowAfter time.Duration
}

// Stats has counters since the server was made.
type Stats struct {
	Connections int64 // now
	Accepted    int64
	Refused     int64 // connections without a valid hello, and requests that are not valid
	Denied      int64 // hellos with wrong credentials
	Full        int64 // hellos beyond the bound of connections, in all or of a tenant
	Requests    int64
	// FailedEntries are entries of requests that were refused or failed, other than by a miss. A
	// request that failed as a whole counts with all of its entries, or as one.
	FailedEntries int64
	TimedOut      int64 // requests whose remaining time ended before their result
	Waited        int64 // requests that waited for memory for requests
	Canceled      int64
}

// Server is a block server. All methods are safe for concurrent use.
type Server struct {
	o     Options
	boot  [16]byte
	slots *wire.Slots // of connections without a credential yet

	connections, memory *shares // of tenants
	ctx                 context.Context
	stop                context.CancelFunc // by Close
	hot                 *hotrun.Counter

	mu       sync.Mutex
	listener net.Listener
	conns    map[net.Conn]struct{}
	closed   bool
	running  sync.WaitGroup

	draining atomic.Bool
	inFlight atomic.Int64  // requests that have a credit
	idle     chan struct{} // buffers one; notified when none is in flight, while draining

	accepted, refused, denied, full, requests, failedEntries, timedOut, waited, canceled atomic.Int64
}

// New returns a server. It returns ErrInvalid for options out of range.
func New(o Options) (*Server, error) {
	o.Connections, o.LeaseMax = cmp.Or(o.Connections, DefaultConnections), cmp.Or(o.LeaseMax, DefaultLeaseMax)
	o.SlowAfter = cmp.Or(o.SlowAfter, DefaultSlowAfter)
	if o.Limits == (blockio.Limits{}) {
		o.Limits = blockio.DefaultLimits()
	}
	if err := o.Limits.Validate(); err != nil {
		return nil, err
	}
	if err := blockio.CheckZone(o.Zone); err != nil {
		return nil, err
	}
	if o.Host == nil || o.Auth == nil || o.Connections < 0 || o.LeaseMax < time.Millisecond {
		return nil, fmt.Errorf("make block server without a host or credentials, or with leases of %v: %w", o.LeaseMax, errdefs.ErrInvalid)
	}
	s := &Server{
		o: o, slots: wire.NewSlots(maxHellos), conns: make(map[net.Conn]struct{}), idle: make(chan struct{}, 1), hot: hotrun.New(o.HotRate),
		connections: newShares(int64(o.Connections), o.Auth.Authenticates()), memory: newShares(requestMemory, o.Auth.Authenticates()),
	}
	s.ctx, s.stop = context.WithCancel(context.Background())
	_, err := rand.Read(s.boot[:])
	return s, err
}

func (s *Server) epoch() uint64 {
	if s.o.Epoch == nil {
		return 0
	}
	return s.o.Epoch()
}

// Boot returns the number of this start of the server, which is in the results of hellos.
func (s *Server) Boot() [16]byte { return s.boot }

// Listen opens a listener at HOST:PORT, if the credentials allow that address, and serves it in the
// background. It returns the address.
func (s *Server) Listen(ctx context.Context, address string) (net.Addr, error) {
	if err := s.o.Auth.CheckListen(address); err != nil {
		return nil, err
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listen as block server: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.listener != nil {
		_ = l.Close() // it has accepted nothing
		return nil, fmt.Errorf("listen as block server: it is closed or listens already: %w", errdefs.ErrClosed)
	}
	s.listener = l
	s.running.Go(func() { wire.Accept(l, s.start, func() { s.refused.Add(1) }) })
	return l.Addr(), nil
}

// start serves a connection in the background.
func (s *Server) start(nc net.Conn) {
	s.accepted.Add(1)
	end := func() { _ = nc.Close() } // it ends the connection's goroutines
	slot := s.slots.Take(end)
	s.mu.Lock()
	defer s.mu.Unlock()
	if slot == nil || s.closed {
		if slot != nil {
			s.slots.Release(slot)
		}
		s.refused.Add(1)
		end()
		return
	}
	s.conns[nc] = struct{}{}
	s.running.Go(func() {
		defer s.slots.Release(slot)
		s.serve(nc, slot)
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.conns, nc)
	})
}

// serve serves a connection until it ends.
func (s *Server) serve(nc net.Conn, slot *wire.Slot) {
	raw := nc
	defer func() { _ = raw.Close() }()                // the first error counts
	_ = raw.SetDeadline(time.Now().Add(helloTimeout)) // reading fails otherwise
	if c := s.o.Auth.TLS(); c != nil {
		t := tls.Server(nc, c)
		if err := t.HandshakeContext(s.ctx); err != nil {
			s.refused.Add(1)
			refuse(raw, err)
			return
		}
		nc = t
	}
	if s.o.RDMA != nil {
		nc = s.o.RDMA.Open(nc, s.o.Auth.Authenticates() || s.o.LoopbackRDMA && isLoopback(nc.LocalAddr()))
		defer func() { _ = nc.Close() }() // it ends the session
	}
	c, err := s.hello(nc, raw, slot)
	defer c.release()
	if err != nil {
		s.refused.Add(1)
		return
	}
	_ = raw.SetDeadline(time.Time{})
	c.run()
}

// refuse answers the hello of a client without TLS, whose handshake failed.
func refuse(raw net.Conn, err error) {
	var record tls.RecordHeaderError
	if errors.As(err, &record) && record.Conn != nil && record.RecordHeader[3] == 0 { // the length of a hello is short
		r := blockio.HelloResult{ID: 1, Status: blockio.StatusNotSupported}
		if b, err := r.Append(nil); err == nil {
			w := wire.NewFrameWriter(raw)
			_ = errors.Join(w.Append(b), w.Flush()) // the client has gone
		}
	}
}

// Drain accepts no more connections, and refuses new requests as StatusDraining. It waits until no
// request is in progress. It returns ErrBusy if ctx ends before, and may be called again.
func (s *Server) Drain(ctx context.Context) error {
	s.draining.Store(true)
	s.mu.Lock()
	if s.listener != nil {
		_ = s.listener.Close() // a second Close has an error
	}
	s.mu.Unlock()
	for {
		n := s.inFlight.Load()
		if n == 0 {
			return nil
		}
		select {
		case <-s.idle:
		case <-ctx.Done():
			return fmt.Errorf("drain block server: %d requests are in progress: %w: %w", n, errdefs.ErrBusy, context.Cause(ctx))
		}
	}
}

// ended notes the end of a request.
func (s *Server) ended() {
	if s.inFlight.Add(-1) > 0 || !s.draining.Load() {
		return
	}
	select {
	case s.idle <- struct{}{}:
	default:
	}
}

// Close ends all connections and waits for their goroutines. It returns ErrBusy if ctx ends before,
// and may be called again.
func (s *Server) Close(ctx context.Context) error {
	s.mu.Lock()
	s.closed = true
	s.stop()
	if s.listener != nil {
		_ = s.listener.Close() // a second Close has an error
	}
	for nc := range s.conns {
		_ = nc.Close() // it ends the connection's goroutines
	}
	s.mu.Unlock()
	ended := make(chan struct{})
	go func() {
		s.running.Wait()
		close(ended)
	}()
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("close block server: %w: %w", errdefs.ErrBusy, context.Cause(ctx))
	}
}

// Stats returns the counters.
func (s *Server) Stats() Stats {
	s.mu.Lock()
	n := int64(len(s.conns))
	s.mu.Unlock()
	return Stats{
		Connections: n, Accepted: s.accepted.Load(), Refused: s.refused.Load(), Denied: s.denied.Load(), Full: s.full.Load(),
		Requests: s.requests.Load(), FailedEntries: s.failedEntries.Load(), TimedOut: s.timedOut.Load(), Waited: s.waited.Load(),
		Canceled: s.canceled.Load(),
	}
}

// isLoopback reports whether an address of a connection is one of this host only.
func isLoopback(a net.Addr) bool {
	t, ok := a.(*net.TCPAddr)
	return ok && t.IP.IsLoopback()
}
