package main

import (
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
)

// Segments of either protocol have metrics.
func TestTransferServeMetrics(t *testing.T) {
	for _, protocol := range []string{protocolMooncake, protocolAuto} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		addr := l.Addr().String()
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		p := interruptible(t, "transfer", "serve", "--protocol", protocol, "--name", "127.0.0.1:0", "--buffer-size", "1MiB", "--metrics-addr", addr)
		p.word(t, "segment ")
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		resp, err := client.Get("http://" + addr + "/metrics")
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil || !strings.Contains(string(body), "\nkvlane_transfer_segments 1\n") {
			t.Errorf("%s: %v\n%s", protocol, err, body)
		}
		p.stop()
	}
	if code, _, _ := execute(t, "transfer", "serve", "--name", "127.0.0.1:0", "--metrics-addr", "nowhere"); code != exitUsage {
		t.Errorf("a malformed address: exit code %d", code)
	}
}
