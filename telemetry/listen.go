package telemetry

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/dirfs"
)

const (
	// unixPrefix begins the path of a Unix socket.
	unixPrefix = "unix:"
	// maxSocketPath is the longest path of a Unix socket.
	maxSocketPath = 107
	// loopback is the host of an address without one.
	loopback = "127.0.0.1"
)

// CheckAddr returns an error that wraps ErrInvalid unless addr is an address to serve on: HOST:PORT, where no host is
// 127.0.0.1 and port 0 is any free one, or unix:PATH, where {pid} in the absolute path stands for the process.
func CheckAddr(addr string) error {
	_, _, err := parseAddr(addr)
	return err
}

// parseAddr returns the network and the address of addr.
func parseAddr(addr string) (network, at string, err error) {
	if path, ok := strings.CutPrefix(addr, unixPrefix); ok {
		path = strings.ReplaceAll(path, "{pid}", strconv.Itoa(os.Getpid()))
		if !filepath.IsAbs(path) || len(path) > maxSocketPath {
			return "", "", fmt.Errorf("%q is no absolute path of at most %d bytes: %w", path, maxSocketPath, errdefs.ErrInvalid)
		}
		return "unix", path, nil
	}
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return "", "", fmt.Errorf("%w: %w: give HOST:PORT or unix:PATH", err, errdefs.ErrInvalid)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil {
		return "", "", fmt.Errorf("port %q is not 0 to 65535: %w", port, errdefs.ErrInvalid)
	} else if host == "" {
		return "tcp", net.JoinHostPort(loopback, strconv.FormatUint(n, 10)), nil
	}
	return "tcp", addr, nil
}

// listen listens on addr and returns the listener and its URL.
func listen(ctx context.Context, addr string) (net.Listener, string, error) {
	network, at, err := parseAddr(addr)
	if err != nil {
		return nil, "", err
	}
	var lc net.ListenConfig
	if network == "unix" {
		if err := removeStale(ctx, at); err != nil {
			return nil, "", err
		}
		// The socket's file gets the mode that the descriptor has when it is bound.
		lc.Control = func(_, _ string, c syscall.RawConn) (err error) {
			return errors.Join(c.Control(func(fd uintptr) { err = unix.Fchmod(int(fd), 0o600) }), err)
		}
	}
	l, err := lc.Listen(ctx, network, at)
	if err != nil {
		return nil, "", err
	}
	url := "http://" + l.Addr().String()
	if network == "unix" {
		url = unixPrefix + at
	}
	return notInChildren(l), url, nil
}

// listener is a net.Listener that children of fork() close.
type listener struct {
	net.Listener
	remove func()
}

// notInChildren makes children of fork() close l, so that the address is free once this process has ended.
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

// Close removes the descriptor from the table before its number may be another file's.
func (l *listener) Close() error {
	l.remove()
	return l.Listener.Close()
}

// removeStale removes the socket of a server that has ended without removing it. Any other file stays.
func removeStale(ctx context.Context, path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.Mode()&fs.ModeSocket == 0:
		return fmt.Errorf("the file is no socket: %w", errdefs.ErrExists)
	}
	c, err := (&net.Dialer{}).DialContext(ctx, "unix", path)
	if err == nil {
		return errors.Join(unix.EADDRINUSE, c.Close())
	}
	if !errors.Is(err, unix.ECONNREFUSED) {
		return err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
