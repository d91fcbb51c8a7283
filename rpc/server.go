package rpc

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/wire"
)

// Defaults of ServerOptions and ClientOptions.
const (
	DefaultMaxBodyBytes   = 64 << 20
	DefaultMaxMetaBytes   = 1 << 20
	DefaultMaxUnsentBytes = 64 << 20
	DefaultMemoryBytes    = 1 << 30
	DefaultStall          = 30 * time.Second
)

// ServerOptions are the options of a server. Zero values are the defaults.
type ServerOptions struct {
	// TLS encrypts the connections. nil: they are plain.
	TLS *tls.Config
	// RDMA lets clients use RDMA. nil: they are refused and continue by TCP. It must outlive the
	// server, and is not used with TLS.
	RDMA *RDMA
	// Authenticate checks the credential in the first request of each connection and returns the
	// Identity of its calls. An error closes the connection. nil: credentials are ignored. TLSState
	// returns the state of the connection.
	Authenticate func(ctx context.Context, credential []byte, remote net.Addr) (identity any, err error)
	// Interceptors run around every handler, the first one outermost.
	Interceptors []Interceptor
	// MaxConcurrency limits the calls at a time, and MethodConcurrency those of a SERVICE/METHOD.
	// More calls fail with LimitReached. 0: no limit.
	MaxConcurrency    int
	MethodConcurrency map[string]int
	// MaxConnections limits the connections. A new one then replaces the connection that has been
	// idle longest. Default: 16,384.
	MaxConnections int
	// MaxPipelined limits the calls in progress on one connection. The server then reads no more
	// requests from it. If the connection has streams, it refuses them with LimitReached. Default:
	// 1,024.
	MaxPipelined int
	// MaxBodyBytes limits a request with its attachment, before and after decompression, and
	// MaxMetaBytes its meta.
	MaxBodyBytes, MaxMetaBytes int64
	// MaxUnsentBytes limits the responses that a client has not read. More responses, and requests,
	// wait. If the client reads nothing for a second, requests fail with Overcrowded.
	MaxUnsentBytes int64
	// MemoryBytes limits the memory of all requests in progress, without those of up to 64 KiB.
	MemoryBytes int64
	// Stall limits the time in which a client must send the next 16 KiB of a request or read the
	// next bytes of responses. A client must send 256 KiB of a request a second after that time.
	Stall time.Duration
}

func (o *ServerOptions) setDefaults() error {
	setDefault(&o.MaxConnections, 16<<10)
	setDefault(&o.MaxPipelined, 1<<10)
	setDefault(&o.MaxBodyBytes, DefaultMaxBodyBytes)
	setDefault(&o.MaxMetaBytes, DefaultMaxMetaBytes)
	setDefault(&o.MaxUnsentBytes, DefaultMaxUnsentBytes)
	setDefault(&o.MemoryBytes, DefaultMemoryBytes)
	setDefault(&o.Stall, DefaultStall)
	if min(o.MaxConcurrency, o.MaxConnections, o.MaxPipelined) < 0 || min(o.MaxBodyBytes, o.MaxMetaBytes, o.MaxUnsentBytes, int64(o.Stall)) < 0 {
		return fmt.Errorf("make rpc server: a limit is negative: %w", errdefs.ErrInvalid)
	}
	if slices.ContainsFunc(o.Interceptors, func(i Interceptor) bool { return i == nil }) {
		return fmt.Errorf("make rpc server: an interceptor is nil: %w", errdefs.ErrInvalid)
	}
	if o.MemoryBytes < o.MaxBodyBytes {
		return fmt.Errorf("make rpc server: memory of %d bytes is less than one request of %d: %w", o.MemoryBytes, o.MaxBodyBytes, errdefs.ErrInvalid)
	}
	return nil
}

func setDefault[T int | int64 | time.Duration](v *T, to T) {
	if *v == 0 {
		*v = to
	}
}

// ServerStats are the counters of a server since NewServer.
type ServerStats struct {
	Connections, Calls int64 // current numbers
	Requests           int64
	Failed             int64 // responses with an error code
	Rejected           int64 // LogOff, LimitReached or Overcrowded; included in Failed
	Broken             int64 // connections closed for malformed frames, time-outs and credentials
}

// Server serves calls over TCP and Unix sockets. It is safe for concurrent use.
type Server struct {
	o      ServerOptions
	slots  *wire.Slots
	budget *wire.Budget
	calls  limiter

	requests, failed, rejected, broken atomic.Int64

	ctx    context.Context // context of all calls; ends with Close
	cancel context.CancelFunc
	group  sync.WaitGroup // connections and calls

	mu        sync.Mutex
	services  services
	listeners map[net.Listener]struct{}
	conns     map[*serverConn]struct{}
	serving   bool
	stopping  atomic.Bool // changes under mu
}

// NewServer returns a server without services. It returns ErrInvalid for wrong options.
func NewServer(o ServerOptions) (*Server, error) {
	if err := o.setDefaults(); err != nil {
		return nil, err
	}
	s := &Server{
		o: o, slots: wire.NewSlots(o.MaxConnections), budget: wire.NewBudget(o.MemoryBytes, smallBody, o.Stall),
		services:  services{methods: make(map[string]*method), names: make(map[string]string)},
		listeners: make(map[net.Listener]struct{}), conns: make(map[*serverConn]struct{}),
	}
	s.calls.max.Store(int64(o.MaxConcurrency))
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s, nil
}

// Register adds services. It returns ErrExists for a method that is registered, ErrInvalid for
// incomplete services and limits of unknown methods, and ErrClosed after Serve has begun.
func (s *Server) Register(list ...*Service) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.serving {
		return fmt.Errorf("register service: the server serves: %w", errdefs.ErrClosed)
	}
	for _, v := range list {
		if err := s.services.add(v); err != nil {
			return err
		}
	}
	return nil
}

// Serve accepts connections of l until Close or Shutdown, and then returns nil. It closes l.
func (s *Server) Serve(l net.Listener) error {
	if l == nil {
		return fmt.Errorf("serve rpc: the listener is nil: %w", errdefs.ErrInvalid)
	}
	defer func() { _ = l.Close() }() // a second close
	s.mu.Lock()
	for name, n := range s.o.MethodConcurrency {
		m := s.services.methods[name]
		if m == nil || n < 0 {
			s.mu.Unlock()
			return fmt.Errorf("limit %s to %d calls: no such method, or negative: %w", name, n, errdefs.ErrInvalid)
		}
		m.calls.max.Store(int64(n))
	}
	if s.stopping.Load() {
		s.mu.Unlock()
		return fmt.Errorf("serve rpc: %w", errdefs.ErrClosed)
	}
	s.serving = true
	s.listeners[l] = struct{}{}
	s.mu.Unlock()
	wire.Accept(l, s.accept, func() {})
	return nil
}

// accept starts the goroutine of a connection.
func (s *Server) accept(conn net.Conn) {
	if s.o.TLS != nil {
		conn = tls.Server(conn, s.o.TLS)
	}
	c := &serverConn{s: s, conn: conn, out: newWriter(conn, s.o.Stall, s.o.MaxUnsentBytes), ended: make(chan struct{})}
	c.changed = sync.NewCond(&c.mu)
	c.streams = newStreamTable(c.out, s.o.MaxBodyBytes)
	c.streams.active = c.touch
	c.ctx, c.cancel = context.WithCancelCause(context.WithValue(s.ctx, connKey{}, conn))
	c.slot = s.slots.Take(func() { _ = conn.Close() }) // called to make space for another connection
	s.mu.Lock()
	if s.stopping.Load() || c.slot == nil {
		s.mu.Unlock()
		if c.slot != nil {
			s.slots.Release(c.slot)
		}
		c.cancel(errdefs.ErrClosed)
		_ = conn.Close() // refused
		return
	}
	s.conns[c] = struct{}{}
	s.group.Add(1)
	s.mu.Unlock()
	go c.run()
}

// intercept returns a handler with the interceptors around it.
func (s *Server) intercept(h Handler) Handler {
	for i := len(s.o.Interceptors) - 1; i >= 0; i-- {
		outer, inner := s.o.Interceptors[i], h
		h = func(ctx context.Context, in proto.Message) (proto.Message, error) { return outer(ctx, in, inner) }
	}
	return h
}

// Stats returns the counters.
func (s *Server) Stats() ServerStats {
	s.mu.Lock()
	n := len(s.conns)
	s.mu.Unlock()
	return ServerStats{
		Connections: int64(n), Calls: s.calls.now.Load(), Requests: s.requests.Load(),
		Failed: s.failed.Load(), Rejected: s.rejected.Load(), Broken: s.broken.Load(),
	}
}

// Shutdown stops gracefully: it accepts no connections, answers new requests with LogOff, waits for
// the calls in progress and their responses, and closes all connections. Clients that send requests
// with ReportExecuted, as package cluster does, are notified. They have up to a second to close
// their connections, so that no request is lost. If ctx ends first, Shutdown closes all connections
// at once and returns an error with the cause and the handlers that still run. Close waits for
// these. It returns ErrClosed after Close.
func (s *Server) Shutdown(ctx context.Context) error {
	checkContext(ctx)
	s.mu.Lock()
	if s.stopping.Load() {
		s.mu.Unlock()
		return fmt.Errorf("shut down rpc server: %w", errdefs.ErrClosed)
	}
	s.stop()
	conns := make([]*serverConn, 0, len(s.conns))
	for c := range s.conns {
		conns = append(conns, c)
	}
	s.mu.Unlock()
	for _, c := range conns {
		c.notify()
	}
	var err error
	for _, c := range conns {
		if err = c.drain(ctx); err != nil {
			break
		}
	}
	if err == nil {
		waitNotified(ctx, conns)
	}
	s.closeAll()
	ended := make(chan struct{})
	go func() {
		s.group.Wait()
		close(ended)
	}()
	select {
	case <-ctx.Done():
		err = context.Cause(ctx)
	case <-ended:
	}
	if err != nil {
		return fmt.Errorf("shut down rpc server: handlers that still run: %s: %w", s.running(), err)
	}
	return nil
}

// running returns the methods with calls in progress, and the number of these.
func (s *Server) running() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []string
	for name, m := range s.services.methods {
		if n := m.calls.now.Load(); n > 0 {
			list = append(list, fmt.Sprintf("%s (%d)", name, n))
		}
	}
	if len(list) == 0 {
		return "none"
	}
	slices.Sort(list)
	return strings.Join(list, ", ")
}

// stop closes the listeners and refuses requests from now on. The caller holds mu.
func (s *Server) stop() {
	for l := range s.listeners {
		_ = l.Close() // Serve returns
	}
	s.stopping.Store(true) // after that, so that clients with a LogOff cannot connect again
}

// Close closes all connections, cancels the calls in progress and waits for their handlers. Later
// calls do nothing.
func (s *Server) Close() error {
	s.closeAll()
	s.group.Wait()
	return nil
}

// closeAll closes all connections and cancels the calls in progress.
func (s *Server) closeAll() {
	s.cancel()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stop()
	for c := range s.conns {
		_ = c.conn.Close() // its goroutine ends
	}
}
