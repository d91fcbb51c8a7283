// Package profiles serves the profiles of a Go process. It is not part of package telemetry, which
// the C library includes.
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

// Serve serves the process's profiles at /debug/pprof/ by telemetry.Serve. It returns ErrInvalid
// unless addr is a loopback address or localhost. Requests for other hosts are refused, so that a
// web page cannot read profiles through a name that resolves to this machine. If the server ends
// during a profile, it sends the incomplete profile.
func Serve(ctx context.Context, addr string) (*telemetry.Server, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, fmt.Errorf("serve profiles: %w: %w", errdefs.ErrInvalid, err)
	}
	if host == "localhost" {
		host = "127.0.0.1" // without asking a resolver
	}
	if !isLoopback(host) {
		return nil, fmt.Errorf("serve profiles on %q: %w: must be a loopback address, such as 127.0.0.1:6060", addr, errdefs.ErrInvalid)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	return telemetry.Serve(ctx, "profiles", net.JoinHostPort(host, port), mux)
}

func isLoopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback()
}
