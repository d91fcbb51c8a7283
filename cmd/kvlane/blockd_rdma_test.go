package main

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/kvlane/kvlane/internal/testkit"
)

// authenticated are the flags of a block server whose clients have tokens.
var authenticated = []string{"blockd", "--listen", "127.0.0.1:0", "--cache-bytes", "64MiB", "--tls-cert", "server.pem", "--tls-key", "server.key", "--tokens", "tokens"}

// A server with credentials opens a NIC and names it. Its counters and buffers are metrics.
func TestBlockdOpensNICs(t *testing.T) {
	t.Chdir(t.TempDir())
	credentialFiles(t)
	metrics := freeAddress(t)
	p := interruptible(t, append(authenticated, "--rdma-provider", "soft", "--metrics-addr", metrics)...)
	p.word(t, "block server ")
	answer, err := http.Get("http://" + metrics + "/metrics") //nolint:noctx // it is of this process
	must(t, err)
	text, err := io.ReadAll(answer.Body)
	must(t, err)
	must(t, answer.Body.Close())
	for _, want := range []string{
		"\nkvlane_blockd_rdma_attached_total 0\n", "\n" + `kvlane_buffers{pool="blockd-data"} 256` + "\n", "\n" + `kvlane_buffers{pool="blockd-small"} 256` + "\n",
	} {
		if !strings.Contains(string(text), want) {
			t.Errorf("the metrics have no %q", want)
		}
	}
	p.stop()
	if !strings.Contains(p.errs.String(), "clients may use RDMA: NIC soft0, ") {
		t.Errorf("standard error %q", p.errs.String())
	}
}

// Without a NIC clients use sockets, unless a NIC is named. Without credentials none is opened.
func TestBlockdWithoutNICs(t *testing.T) {
	t.Chdir(t.TempDir())
	credentialFiles(t)
	stderr := func(args ...string) string {
		p := interruptible(t, args...)
		p.word(t, "block server ")
		p.stop()
		return p.errs.String()
	}
	if text := stderr(authenticated[:5]...); text != "" {
		t.Errorf("without credentials: standard error %q", text)
	}
	text := stderr(authenticated...)
	if strings.Contains(text, "clients may use RDMA: NIC ") { // this machine has one
		testkit.Skip(t, "no NIC", text)
	}
	if !strings.Contains(text, "NICs are not used, clients use sockets: ") {
		t.Errorf("standard error %q", text)
	}
	code, stdout, failure := execute(t, append(authenticated, "--rdma-provider", "soft", "--nic", "no-such-nic")...)
	if code != exitUsage && code != exitFailure || !strings.Contains(failure, `"no-such-nic"`) || stdout != "" {
		t.Errorf("exit code %d, %q, %s", code, stdout, failure)
	}
}
