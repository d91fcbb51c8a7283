package telemetry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log" //nolint:depguard // http.Server.ErrorLog is a *log.Logger
	"net"
	"net/http"
	"sync"
	"time"
)

const (
	// stopTimeout bounds the wait of a stopping server for requests in progress.
	stopTimeout = 2 * time.Second
	// requestTimeout bounds the time in which a client sends a request.
	requestTimeout = 5 * time.Second
	// responseTimeout bounds the time of a response.
	responseTimeout = 30 * time.Second
	// idleTimeout is longer than Prometheus's default interval of a minute.
	idleTimeout = 2 * time.Minute
)

// Server serves HTTP on one address.
type Server struct {
	what   string
	url    string
	addr   net.Addr
	cancel context.CancelFunc
	done   chan struct{}
	err    error // written before done is closed
	report sync.Once
}

// Serve listens on addr (see CheckAddr) and serves the metrics at /metrics until ctx ends or Close
// is called. /healthz answers while the server runs, and /readyz reports Ready. The address is
// bound when Serve returns. The error for a malformed or taken address names it. The caller must
// call Close, which waits for the end of the server and returns its failure.
func (m *Metrics) Serve(ctx context.Context, addr string) (*Server, error) {
	return Serve(ctx, "metrics", addr, m.Handler())
}

// Handler serves /metrics, /healthz and /readyz, for programs with their own HTTP server.
func (m *Metrics) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "kvlane\n\n/metrics  metrics in Prometheus's text format\n/healthz  whether the process runs\n/readyz   whether it can serve\n")
	})
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", ContentType)
		_ = m.WriteText(w) // an error means that the client is gone
	})
	m.HandleHealth(mux)
	return mux
}

// HandleHealth adds /healthz and /readyz to the paths of a server.
func (m *Metrics) HandleHealth(mux *http.ServeMux) {
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok\n") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := m.Ready(); err != nil {
			http.Error(w, "not ready: "+err.Error(), http.StatusServiceUnavailable)
			return
		}
		_, _ = io.WriteString(w, "ready\n")
	})
}

// Serve listens on addr (see CheckAddr) and serves h until ctx ends or Close is called. Errors
// contain the word in the parameter what. The server has at most 32 connections at a time. On a
// loopback address, it refuses requests whose Host header names another host.
func Serve(ctx context.Context, what, addr string, h http.Handler) (*Server, error) {
	l, url, err := listen(ctx, addr)
	if err != nil {
		return nil, fmt.Errorf("serve %s on %q: %w", what, addr, err)
	}
	ctx, cancel := context.WithCancel(ctx)
	s := &Server{what: what, url: url, addr: l.Addr(), cancel: cancel, done: make(chan struct{})}
	hs := &http.Server{
		Handler: localHostsOnly(addr, l, h), ConnState: noteState, BaseContext: func(net.Listener) context.Context { return ctx },
		ReadTimeout: requestTimeout, WriteTimeout: responseTimeout, IdleTimeout: idleTimeout,
		ErrorLog: log.New(io.Discard, "", 0), // standard error is the program's
	}
	go s.run(ctx, hs, bounded(l))
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
		var stopErr error
		if hs.Shutdown(stop) != nil { // close the connections of requests in progress
			stopErr = hs.Close()
		}
		if err = <-serving; errors.Is(err, http.ErrServerClosed) {
			err = nil
		}
		err = errors.Join(stopErr, err)
	}
	if err != nil {
		s.err = fmt.Errorf("serve %s on %s: %w", s.what, s.url, err)
	}
}

// Addr returns the address that the server listens on.
func (s *Server) Addr() net.Addr { return s.addr }

// URL returns the address as a user writes it: http://HOST:PORT, or unix:/PATH.
func (s *Server) URL() string { return s.url }

// Close stops the server, waits for its end, and returns its failure, if any. Later calls return
// nil.
func (s *Server) Close() (err error) {
	s.cancel()
	<-s.done
	s.report.Do(func() { err = s.err })
	return err
}
