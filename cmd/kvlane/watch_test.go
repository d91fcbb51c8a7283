package main

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
)

// freeAddress returns a loopback address with an unused port.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	return l.Addr().String()
}

// page returns the body of a page.
func page(t *testing.T, url string) string {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	if err := resp.Body.Close(); err != nil {
		t.Error(err)
	}
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s, %v: %s", url, resp.Status, err, body)
	}
	return string(body)
}

// Segments of both protocols export metrics and profiles.
func TestTransferServeIsWatched(t *testing.T) {
	for _, protocol := range []string{protocolMooncake, protocolAuto} {
		metrics, profiles := freeAddress(t), freeAddress(t)
		p := interruptible(t, "transfer", "serve", "--protocol", protocol, "--name", "127.0.0.1:0", "--buffer-size", "1MiB",
			"--metrics-addr", metrics, "--pprof-addr", profiles)
		p.word(t, "segment ")
		if body := page(t, "http://"+metrics+"/metrics"); !strings.Contains(body, "\nkvlane_transfer_segments 1\n") {
			t.Errorf("%s:\n%s", protocol, body)
		}
		if body := page(t, "http://"+metrics+"/readyz"); body != "ready\n" {
			t.Errorf("%s: %s", protocol, body)
		}
		if body := page(t, "http://"+profiles+"/debug/pprof/goroutine?debug=1"); !strings.Contains(body, "goroutine profile: total ") {
			t.Errorf("%s:\n%s", protocol, body)
		}
		p.stop()
	}
}

// A command without metrics of its own exports those of its process.
func TestMetadataServerIsWatched(t *testing.T) {
	metrics := freeAddress(t)
	p := interruptible(t, "transfer", "metadata", "--listen", "127.0.0.1:0", "--metrics-addr", metrics)
	at, _, _ := strings.Cut(p.word(t, "metadata "), "/metadata;")
	if body := page(t, at+"/healthz"); body != "ok\n" {
		t.Error(body)
	}
	if body := page(t, "http://"+metrics+"/metrics"); !strings.Contains(body, "\nkvlane_build_info{") || !strings.Contains(body, "\ngo_goroutines ") {
		t.Error(body)
	}
}

// For every command, a wrong address is wrong usage, and profiles are served only on loopback
// addresses.
func TestWatchedAtAWrongAddress(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	forEachCommand(func(path string, _ *cobra.Command) {
		args := append(strings.Fields(path), operands[path]...)
		if path == "replay" || strings.HasPrefix(path, "store ") {
			args = append(args, t.TempDir())
		}
		for _, c := range []struct {
			flag, addr, want string
			code             int
		}{
			{"--metrics-addr", "nowhere", `--metrics-addr: "nowhere" is neither HOST:PORT nor unix:/PATH`, exitUsage},
			{"--metrics-addr", taken.Addr().String(), taken.Addr().String(), exitFailure},
			{"--pprof-addr", "0.0.0.0:0", `"0.0.0.0:0"`, exitUsage},
			{"--pprof-addr", taken.Addr().String(), taken.Addr().String(), exitFailure},
		} {
			code, stdout, stderr := execute(t, append(args, c.flag, c.addr)...)
			if code != c.code || !strings.Contains(stderr, c.want) || stdout != "" {
				t.Errorf("%s %s %s: exit code %d, %q", path, c.flag, c.addr, code, stderr)
			}
		}
	})
}

// Metrics are served until the command has ended, also after an interrupt.
func TestMetricsAreServedDuringTheEnd(t *testing.T) {
	addr := freeAddress(t)
	ctx, cancel := context.WithCancel(t.Context())
	served, stop, err := (&watchFlags{metricsAddr: addr}).serve(ctx, nil)
	must(t, err)
	cancel()
	time.Sleep(20 * time.Millisecond) // a server that ended with ctx would be gone
	if body := page(t, "http://"+addr+"/healthz"); body != "ok\n" || served.Err() == nil {
		t.Errorf("%q, %v", body, served.Err())
	}
	must(t, stop())
}
