package acceptance_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/kvlane/kvlane"
	"github.com/kvlane/kvlane/errdefs"
)

// metricsPage returns the status and the body of a page that is served on a socket.
func metricsPage(t *testing.T, socket, path string) (int, string) {
	t.Helper()
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: dial}}
	resp, err := client.Get("http://localhost" + path)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	if err := errors.Join(err, resp.Body.Close()); err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

// An engine serves its metrics from Open until Close.
func TestEngineServesMetrics(t *testing.T) {
	dir := t.TempDir()
	c := testConfig(t)
	c.MetricsAddr = "unix:" + filepath.Join(dir, "worker{rank}.sock")
	c.Model.TPSize, c.Model.TPRank, c.Model.KVHeads = 2, 1, 2
	c.Store.CacheBytes *= 2
	e := openEngine(t, c)
	socket := filepath.Join(dir, "worker1.sock")
	if status, body := metricsPage(t, socket, "/readyz"); status != http.StatusOK {
		t.Errorf("/readyz: status %d, %s", status, body)
	}
	_, body := metricsPage(t, socket, "/metrics")
	var written bytes.Buffer
	if err := e.WriteMetrics(&written); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"\nkvlane_store_loads_total 0\n", "\nkvlane_tier_blocks{tier=\"file\"} 0\n", "\nkvlane_plan_drifted 0\n"} {
		if !strings.Contains(body, want) || !strings.Contains(written.String(), want) {
			t.Errorf("the metrics lack %q:\n%s", want, body)
		}
	}
	if err := e.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(socket); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket after Close: %v", err)
	}
}

// A manager serves its own metrics.
func TestManagerServesMetrics(t *testing.T) {
	dir := t.TempDir()
	m, err := kvlane.OpenManager(t.Context(), kvlane.ManagerConfig{Ranks: []kvlane.Config{testConfig(t)}, MetricsAddr: "unix:" + filepath.Join(dir, "{rank}.sock")})
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(dir, "scheduler.sock")
	if status, body := metricsPage(t, socket, "/metrics"); status != http.StatusOK || !strings.Contains(body, "\nkvlane_manager_blocks 0\n") {
		t.Errorf("status %d: %s", status, body)
	}
	if err := m.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(socket); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket after Close: %v", err)
	}
}

// Open fails on an address that is in use, before it opens anything else.
func TestMetricsAddressIsTaken(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c := testConfig(t)
	c.MetricsAddr = l.Addr().String()
	c.Store.Dirs = []string{filepath.Join(t.TempDir(), "not made")}
	if _, err := kvlane.Open(t.Context(), c); !errors.Is(err, syscall.EADDRINUSE) || !strings.Contains(err.Error(), c.MetricsAddr) {
		t.Errorf("Open: %v", err)
	}
	if _, err := kvlane.OpenManager(t.Context(), kvlane.ManagerConfig{Ranks: []kvlane.Config{c}, MetricsAddr: c.MetricsAddr}); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("OpenManager: %v", err)
	}
	if _, err := os.Stat(c.Store.Dirs[0]); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory of files: %v", err)
	}
	c.MetricsAddr = "nowhere"
	if err := c.Validate(); !errors.Is(err, errdefs.ErrInvalid) || !strings.Contains(err.Error(), "metrics_addr: ") {
		t.Errorf("Validate: %v", err)
	}
	for _, addr := range []string{":0", "127.0.0.1:00", "127.0.0.1:{rank}", "{rank}:1", "unix:/run/{other}.sock", "unix:/run/a\x00b"} {
		c.MetricsAddr = addr
		if err := c.Validate(); !errors.Is(err, errdefs.ErrInvalid) || !strings.Contains(err.Error(), "metrics_addr: ") {
			t.Errorf("Validate with %q: %v", addr, err)
		}
	}
}
