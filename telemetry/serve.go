package telemetry

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// How long a stopping server waits for scrapes in progress, and any server for a client that is slow to ask.
const (
	stopTimeout   = 2 * time.Second
	headerTimeout = 5 * time.Second
)

// Server serves metrics over HTTP.
type Server struct {
	addr   net.Addr
	cancel context.CancelFunc
	done   chan struct{}
	err    error // written before done is closed
}

// Serve listens on addr ("host:port", port 0 for any) and serves the metrics at /metrics until ctx ends or Close is
// called. When it returns without error the address is bound; an address that is malformed or taken is an error that
// names it. The caller calls Close in any case, to learn that the server has gone and why.
func (m *Metrics) Serve(ctx context.Context, addr string) (*Server, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("serve metrics on %q: %w", addr, err)
	}
	ctx, cancel := context.WithCancel(ctx)
	s := &Server{addr: l.Addr(), cancel: cancel, done: make(chan struct{})}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{}))
	hs := &http.Server{Handler: mux, ReadHeaderTimeout: headerTimeout}
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
		s.err = fmt.Errorf("serve metrics on %s: %w", s.addr, err)
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
