package telemetry

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/dirfs"
)

const (
	// unixPrefix is the prefix of addresses of Unix sockets.
	unixPrefix = "unix:"
	// maxSocketPath is the maximum length of the path of a Unix socket.
	maxSocketPath = 107
	// loopback is the default host.
	loopback = "127.0.0.1"
)

// CheckAddr returns an error that wraps ErrInvalid if addr is not a valid address to listen on:
// HOST:PORT or unix:/PATH. The default host is 127.0.0.1. Port 0 selects a free port. {pid} in the
// path is replaced by the process ID.
func CheckAddr(addr string) error {
	_, _, err := parseAddr(addr)
	return err
}

// parseAddr returns the network and the address of addr.
func parseAddr(addr string) (network, at string, err error) {
	if path, ok := strings.CutPrefix(addr, unixPrefix); ok {
		path = strings.ReplaceAll(path, "{pid}", strconv.Itoa(os.Getpid()))
		switch {
		case !filepath.IsAbs(path) || len(path) > maxSocketPath:
			return "", "", fmt.Errorf("%q is not an absolute path of at most %d bytes: %w", path, maxSocketPath, errdefs.ErrInvalid)
		case strings.ContainsAny(path, "\x00{}"):
			return "", "", fmt.Errorf("path %q contains a brace or a NUL byte: %w", path, errdefs.ErrInvalid)
		}
		return "unix", path, nil
	}
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return "", "", fmt.Errorf("%q is neither HOST:PORT nor unix:/PATH: %w: %w", addr, err, errdefs.ErrInvalid)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil {
		return "", "", fmt.Errorf("port %q is not 0 to 65535: %w", port, errdefs.ErrInvalid)
	} else if host == "" {
		return "tcp", net.JoinHostPort(loopback, strconv.FormatUint(n, 10)), nil
	}
	if !isHost(host) {
		return "", "", fmt.Errorf("host %q is neither an IP address nor a host name: %w", host, errdefs.ErrInvalid)
	}
	return "tcp", addr, nil
}

// isHost reports whether host is an IP address or has only characters of a host name.
func isHost(host string) bool {
	if _, err := netip.ParseAddr(host); err == nil {
		return true
	}
	return strings.IndexFunc(host, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '.' && r != '-' && r != '_'
	}) < 0
}

// listen listens on addr and returns the listener and its URL. It returns ErrInvalid for a host
// that does not resolve.
func listen(ctx context.Context, addr string) (net.Listener, string, error) {
	network, at, err := parseAddr(addr)
	if err != nil {
		return nil, "", err
	}
	if network == "unix" {
		l, err := listenUnix(ctx, at)
		return l, unixPrefix + at, err
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, network, at)
	if err != nil {
		var dns *net.DNSError
		if errors.As(err, &dns) && !dns.Temporary() {
			err = fmt.Errorf("%w: %w", err, errdefs.ErrInvalid)
		}
		return nil, "", err
	}
	return notInChildren(l), "http://" + l.Addr().String(), nil
}

// listener is a net.Listener whose descriptor is closed in children of fork().
type listener struct {
	net.Listener
	remove func()
}

// notInChildren closes l in children of fork(), so that the address is free when this process has
// ended.
func notInChildren(l net.Listener) net.Listener {
	c, ok := l.(syscall.Conn)
	if !ok {
		return l
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return l
	}
	out := &listener{Listener: l, remove: func() {}}
	if raw.Control(func(fd uintptr) { out.remove = dirfs.CloseInChildren(int(fd)) }) != nil {
		return l
	}
	return out
}

// Close first removes the descriptor from the table, because another file could get the same number
// after the close.
func (l *listener) Close() error {
	l.remove()
	return l.Listener.Close()
}
