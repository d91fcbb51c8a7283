package telemetry

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/kvlane/kvlane/errdefs"
)

// How long a stopping server waits for scrapes in progress, and any server for a client that is slow to ask.
const (
	stopTimeout   = 2 * time.Second
	headerTimeout = 5 * time.Second
)

// Server serves metrics, or profiles, over HTTP.
type Server struct {
	what   string
	addr   net.Addr
	cancel context.CancelFunc
	done   chan struct{}
	err    error // written before done is closed
}

// Serve listens on addr ("host:port", port 0 for any) and serves the metrics at /metrics until ctx ends or Close is
// called. When it returns without error the address is bound; an address that is malformed or taken is an error that
// names it. The caller calls Close in any case, to learn that the server has gone and why.
func (m *Metrics) Serve(ctx context.Context, addr string) (*Server, error) {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{}))
	return serve(ctx, "metrics", addr, mux)
}

// ServeProfiles serves the process's profiles at /debug/pprof/ as Metrics.Serve does metrics, on a loopback address alone, since they show what
// the process does: for another, and for a name other than localhost, the error wraps ErrInvalid. A profile that is being taken when the
// server ends is sent with what it has by then.
func ServeProfiles(ctx context.Context, addr string) (*Server, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, fmt.Errorf("serve profiles: %w: %w", errdefs.ErrInvalid, err)
	}
	if host == "localhost" {
		host = "127.0.0.1" // whatever a resolver says of it
	}
	if ip, err := netip.ParseAddr(host); err != nil || !ip.Unmap().IsLoopback() {
		return nil, fmt.Errorf("serve profiles on %q: %w: it is no loopback address, such as 127.0.0.1:6060", addr, errdefs.ErrInvalid)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	return serve(ctx, "profiles", net.JoinHostPort(host, port), mux)
}

func serve(ctx context.Context, what, addr string, h http.Handler) (*Server, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("serve %s on %q: %w", what, addr, err)
	}
	ctx, cancel := context.WithCancel(ctx)
	s := &Server{what: what, addr: l.Addr(), cancel: cancel, done: make(chan struct{})}
	hs := &http.Server{Handler: h, ReadHeaderTimeout: headerTimeout, BaseContext: func(net.Listener) context.Context { return ctx }}
	go s.run(ctx, hs, l)
	return s, nil
}

func (s *Server) run(ctx context.Context, hs *http.Server, l net.Listener) {
	defer close(s.done)
	defer s.cancel()
	serving := make(chan error, 1)
	go func() { serving <- hs.Serve(l) }()
	var err error
	select {
	case err = <-serving:
	case <-ctx.Done():
		// The context has ended, so the stop needs one of its own.
		stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
		defer cancel()
		stopErr := hs.Shutdown(stop)
		if stopErr != nil {
			stopErr = errors.Join(stopErr, hs.Close())
		}
		if err = <-serving; errors.Is(err, http.ErrServerClosed) {
			err = nil
		}
		err = errors.Join(stopErr, err)
	}
	if err != nil {
		s.err = fmt.Errorf("serve %s on %s: %w", s.what, s.addr, err)
	}
}

// Addr returns the address that the server listens on.
func (s *Server) Addr() net.Addr { return s.addr }

// Close stops the server, waits until it has gone, and returns why it ended if that was not Close or its context.
func (s *Server) Close() error {
	s.cancel()
	<-s.done
	return s.err
}
