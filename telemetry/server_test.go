package telemetry_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/telemetry"
)

// Clients that keep connections open use at most 32 descriptors, and do not keep other clients out.
func TestConnectionsAreBounded(t *testing.T) {
	const most, clients = 32, 96
	release := make(chan struct{})
	srv, err := telemetry.Serve(t.Context(), "test", "127.0.0.1:0", http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-release }))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = srv.Close() }()
	stop := sync.OnceFunc(func() { close(release) })
	defer stop()
	addr := srv.Addr().String()
	ended := make(chan struct{}, clients)
	for range clients {
		c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		go func() {
			_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
			_, _ = io.Copy(io.Discard, c)
			ended <- struct{}{}
		}()
	}
	deadline := time.After(testkit.Patience())
	for n := range clients - most {
		select {
		case <-ended:
		case <-deadline:
			t.Fatalf("%d of %d connections are open", clients-n, clients)
		}
	}
	stop()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for {
		resp, err := client.Get(srv.URL())
		if err == nil {
			_ = resp.Body.Close()
			return
		}
		select {
		case <-deadline:
			t.Fatalf("no connection is free for another client: %v", err)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// A request whose body does not arrive is ended.
func TestRequestWithoutItsBodyEnds(t *testing.T) {
	srv, err := telemetry.New().Serve(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = srv.Close() }()
	c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", srv.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.SetReadDeadline(time.Now().Add(testkit.Patience())); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(c, "GET /metrics HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, c); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("the connection stays open")
	}
}

// The server writes nothing to the program's log.
func TestServerDoesNotLog(t *testing.T) {
	var logged bytes.Buffer
	log.SetOutput(&logged)
	defer log.SetOutput(os.Stderr)
	srv, err := telemetry.Serve(t.Context(), "test", "127.0.0.1:0", http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("test") }))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.Get(srv.URL())
	if err == nil {
		_ = resp.Body.Close()
		t.Errorf("a failed handler: status %d", resp.StatusCode)
	}
	if err := srv.Close(); err != nil {
		t.Error(err)
	}
	if logged.Len() > 0 {
		t.Errorf("logged: %s", &logged)
	}
}

// A web page must not read metrics of a loopback address through a host name that resolves to this
// machine.
func TestForeignHostsAreRefused(t *testing.T) {
	for listen, hosts := range map[string]map[string]int{
		"127.0.0.1:0": {
			"localhost": 200, "LOCALHOST:1": 200, "127.0.0.1:1": 200, "127.1.2.3": 200, "[::1]": 200, "[::1]:1": 200, "": 200,
			"evil.example": 403, "evil.example:80": 403, "localhost.evil.example": 403, "192.0.2.1": 403,
		},
		"0.0.0.0:0": {"any.example": 200, "localhost": 200},
	} {
		srv, err := telemetry.New().Serve(t.Context(), listen)
		if err != nil {
			t.Fatal(err)
		}
		for host, want := range hosts {
			c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", strings.Replace(srv.Addr().String(), "[::]", "127.0.0.1", 1))
			if err != nil {
				t.Fatal(err)
			}
			line := "HTTP/1.1\r\nConnection: close\r\nHost: " + host
			if host == "" {
				line = "HTTP/1.0"
			}
			_, err = fmt.Fprintf(c, "GET /healthz %s\r\n\r\n", line)
			answer, readErr := io.ReadAll(c)
			if err := errors.Join(err, readErr, c.Close()); err != nil {
				t.Fatal(err)
			}
			if _, status, _ := strings.Cut(string(answer), " "); !strings.HasPrefix(status, fmt.Sprint(want)) {
				t.Errorf("on %s host %q: %.30q, want status %d", listen, host, answer, want)
			}
		}
		if err := srv.Close(); err != nil {
			t.Error(err)
		}
	}
}

// makeStaleSocket creates a socket as a killed process leaves it.
func makeStaleSocket(t *testing.T, path string) {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

// If several servers start at the same time, exactly one gets the socket's address.
func TestOneServerReplacesAStaleSocket(t *testing.T) {
	for range 100 {
		path := filepath.Join(t.TempDir(), "s")
		makeStaleSocket(t, path)
		var servers [4]*telemetry.Server
		var failures [4]error
		var starts sync.WaitGroup
		for i := range servers {
			starts.Go(func() { servers[i], failures[i] = telemetry.New().Serve(t.Context(), "unix:"+path) })
		}
		starts.Wait()
		var serving int
		for i, srv := range servers {
			if srv == nil {
				if !errors.Is(failures[i], unix.EADDRINUSE) {
					t.Errorf("the start of server %d: %v", i, failures[i])
				}
				continue
			}
			serving++
			if err := srv.Close(); err != nil {
				t.Error(err)
			}
		}
		if serving != 1 {
			t.Fatalf("%d servers have the address: %v", serving, failures)
		}
	}
}

// A server creates no socket while another process holds the lock of the directory.
func TestSocketNeedsItsDirectory(t *testing.T) {
	dir, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	srv, err := telemetry.New().Serve(ctx, "unix:"+filepath.Join(dir.Name(), "s"))
	if !errors.Is(err, errdefs.ErrBusy) || !errors.Is(err, context.Canceled) {
		t.Errorf("in a locked directory: %v", err)
	}
	if err == nil {
		_ = srv.Close()
	}
}

// A server that ends does not remove the socket of another server that has replaced its path.
func TestCloseLeavesAnotherSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	first, err := telemetry.New().Serve(t.Context(), "unix:"+path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	second, err := telemetry.New().Serve(t.Context(), "unix:"+path)
	if err != nil {
		t.Fatal(err)
	}
	if err := first.Close(); err != nil {
		t.Error(err)
	}
	if status, _ := get(t, "unix", path, "/healthz"); status != http.StatusOK {
		t.Errorf("status %d", status)
	}
	if err := second.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("after the end: %v", err)
	}
}

func TestAddressesAreChecked(t *testing.T) {
	for _, addr := range []string{"127.0.0.1:9400", ":9400", "[::1]:0", "[fe80::1%eth0]:1", "host.example:1", "a_b-c:1", "unix:/run/{pid}.sock"} {
		if err := telemetry.CheckAddr(addr); err != nil {
			t.Errorf("%s: %v", addr, err)
		}
	}
	for _, addr := range []string{
		"", "9400", "127.0.0.1", "127.0.0.1:http", "127.0.0.1:65536", "127.0.0.1:-1", "unix:", "unix:m.sock", "unix:/" + strings.Repeat("a", 107),
		"{pid}:1", " 127.0.0.1:0", "127.0.0.1:{rank}", "a\x00b:1", "unix:/run/a\x00b", "unix:/run/{other}.sock", "unix:/run/{rank}.sock",
	} {
		if err := telemetry.CheckAddr(addr); !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("%q: %v", addr, err)
		}
	}
	if err := telemetry.CheckAddr("nowhere"); err == nil || !strings.Contains(err.Error(), "is neither HOST:PORT nor unix:/PATH") {
		t.Errorf("an address without a port: %v", err)
	}
}

// The label of a host name has at most 63 bytes.
func TestUnknownHostIsInvalid(t *testing.T) {
	if _, err := telemetry.New().Serve(t.Context(), strings.Repeat("a", 64)+":1"); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("serve on an unknown host: %v", err)
	}
}

// Only its user can access a socket. It is removed when the server ends, and replaced if its
// process has died.
func TestServesOnUnixSockets(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, fmt.Sprintf("m-%d.sock", os.Getpid()))
	addr := "unix:" + filepath.Join(dir, "m-{pid}.sock")
	for _, left := range []bool{false, true} {
		if left { // the socket of a killed process exists
			makeStaleSocket(t, path)
		}
		srv, err := telemetry.New().Serve(t.Context(), addr)
		if err != nil {
			t.Fatal(err)
		}
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("the socket: %v, %v", info, err)
		}
		if srv.URL() != "unix:"+path {
			t.Errorf("the address is %q", srv.URL())
		}
		if status, body := get(t, "unix", path, "/metrics"); status != http.StatusOK || !strings.Contains(body, "kvlane_build_info{") {
			t.Errorf("status %d: %s", status, body)
		}
		if _, err := telemetry.New().Serve(t.Context(), addr); err == nil || !strings.Contains(err.Error(), "address already in use") {
			t.Errorf("a second server: %v", err)
		}
		if err := srv.Close(); err != nil {
			t.Error(err)
		}
		if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("after the end: %v", err)
		}
	}
	if err := os.WriteFile(path, []byte("data"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := telemetry.New().Serve(t.Context(), addr); !errors.Is(err, errdefs.ErrExists) {
		t.Errorf("over a file: %v", err)
	}
	if data, err := os.ReadFile(path); err != nil || string(data) != "data" {
		t.Errorf("the file afterwards: %q, %v", data, err)
	}
}
