// Package profiles serves the runtime profiles of the process over HTTP. It is separate from
// package telemetry so that the C library does not contain it.
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

// Serve serves profiles at /debug/pprof/ with telemetry.Serve. It returns ErrInvalid if addr is
// neither a loopback address nor localhost. Requests for other hosts are refused, so that web pages
// cannot read profiles through a name that resolves to this machine. If the server is closed during
// a profile, it sends the incomplete profile.
func Serve(ctx context.Context, addr string) (*telemetry.Server, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, fmt.Errorf("serve profiles: %w: %w", errdefs.ErrInvalid, err)
	}
	if host == "localhost" {
		host = "127.0.0.1" // avoids a name lookup
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
