// Package profiles serves the profiles of a Go process. It is apart from package telemetry, which the C library has too.
package profiles

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"net/netip"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/telemetry"
)

// Serve serves the process's profiles at /debug/pprof/, as telemetry.Serve does, on a loopback address only: for another
// one, and for a name other than localhost, the error wraps ErrInvalid. Requests that name another host are refused, so
// that a web page cannot read profiles through a name that resolves to this machine. A profile that is being taken when
// the server ends is sent with what it has by then.
func Serve(ctx context.Context, addr string) (*telemetry.Server, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, fmt.Errorf("serve profiles: %w: %w", errdefs.ErrInvalid, err)
	}
	if host == "localhost" {
		host = "127.0.0.1" // whatever a resolver returns for it
	}
	if !isLoopback(host) {
		return nil, fmt.Errorf("serve profiles on %q: %w: it is no loopback address, such as 127.0.0.1:6060", addr, errdefs.ErrInvalid)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	return telemetry.Serve(ctx, "profiles", net.JoinHostPort(host, port), onlyLoopback(mux))
}

// onlyLoopback refuses requests whose Host header names no loopback address.
func onlyLoopback(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host := r.Host
		if h, _, err := net.SplitHostPort(host); err == nil {
			host = h
		}
		if host != "localhost" && !isLoopback(host) {
			http.Error(w, "profiles are served to localhost only", http.StatusForbidden)
			return
		}
		h.ServeHTTP(w, r)
	})
}

func isLoopback(host string) bool {
	if n := len(host); n > 2 && host[0] == '[' && host[n-1] == ']' {
		host = host[1 : n-1]
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback()
}
