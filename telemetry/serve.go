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

	"github.com/kvlane/kvlane/internal/statuspage"
)

const (
	// stopTimeout is the maximum time for which Close waits for requests in progress.
	stopTimeout = 2 * time.Second
	// requestTimeout is the maximum time to receive a request.
	requestTimeout = 5 * time.Second
	// responseTimeout is the maximum time to send a response.
	responseTimeout = 30 * time.Second
	// idleTimeout is longer than Prometheus's default scrape interval of a minute.
	idleTimeout = 2 * time.Minute
)

// Server is an HTTP server on one address.
type Server struct {
	what   string
	url    string
	addr   net.Addr
	cancel context.CancelFunc
	done   chan struct{}
	err    error // set before done is closed
	report sync.Once
}

// Serve listens on addr (see CheckAddr) and serves the status page at /, and the metrics at
// /metrics, until ctx ends or Close is called. It also serves /healthz and /readyz. When Serve
// returns, the server accepts connections. An error for an invalid or used address contains the
// address. The caller must call Close, which waits for the end of the server and returns its error.
func (m *Metrics) Serve(ctx context.Context, addr string) (*Server, error) {
	return serve(ctx, "metrics", addr, m.Handler(), m.page.Sample)
}

// Handler serves the status page, /metrics, /healthz and /readyz. It is for programs with their own
// HTTP server. Its page has no charts.
func (m *Metrics) Handler() http.Handler {
	mux := http.NewServeMux()
	m.page.Handle(mux)
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", ContentType)
		_ = m.WriteText(w) // an error means that the client has disconnected
	})
	m.HandleHealth(mux)
	return mux
}

// HandleHealth adds /healthz and /readyz to mux.
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

// Serve listens on addr (see CheckAddr) and serves h until ctx ends or Close is called. what names
// the server in errors. The server has at most 32 concurrent connections. On a loopback address, it
// refuses requests whose Host header names another host.
func Serve(ctx context.Context, what, addr string, h http.Handler) (*Server, error) {
	return serve(ctx, what, addr, h, func() {})
}

// serve is Serve. It calls sample at the page's interval.
func serve(ctx context.Context, what, addr string, h http.Handler, sample func()) (*Server, error) {
	l, url, err := listen(ctx, addr)
	if err != nil {
		return nil, fmt.Errorf("serve %s on %q: %w", what, addr, err)
	}
	ctx, cancel := context.WithCancel(ctx)
	s := &Server{what: what, url: url, addr: l.Addr(), cancel: cancel, done: make(chan struct{})}
	hs := &http.Server{
		Handler: localHostsOnly(addr, l, h), ConnState: noteState, BaseContext: func(net.Listener) context.Context { return ctx },
		ReadTimeout: requestTimeout, WriteTimeout: responseTimeout, IdleTimeout: idleTimeout,
		ErrorLog: log.New(io.Discard, "", 0), // standard error belongs to the program
	}
	go s.run(ctx, hs, bounded(l), sample)
	return s, nil
}

func (s *Server) run(ctx context.Context, hs *http.Server, l net.Listener, sample func()) {
	defer close(s.done)
	defer s.cancel()
	serving := make(chan error, 1)
	go func() { serving <- hs.Serve(l) }()
	var err error
	samples := time.NewTicker(statuspage.Interval)
	defer samples.Stop()
	sample()
	for waiting := true; waiting; {
		select {
		case <-samples.C:
			sample()
		case err = <-serving:
			waiting = false
		case <-ctx.Done():
			waiting = false
		}
	}
	if err == nil {
		// ctx has ended, so the shutdown needs another context.
		stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
		defer cancel()
		var stopErr error
		if hs.Shutdown(stop) != nil { // a request is still in progress: close its connection
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

// Addr returns the address on which the server listens.
func (s *Server) Addr() net.Addr { return s.addr }

// URL returns the server's URL: http://HOST:PORT, or unix:/PATH.
func (s *Server) URL() string { return s.url }

// Close stops the server, waits for its end, and returns its error. Further calls return nil.
func (s *Server) Close() (err error) {
	s.cancel()
	<-s.done
	s.report.Do(func() { err = s.err })
	return err
}
