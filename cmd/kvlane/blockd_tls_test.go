package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/kvlane/kvlane/internal/testkit"
)

// The page's commands make certificates with which a server and a replay accept each other. The
// second replay finds the blocks of the first.
func TestBlockServersPageCertificates(t *testing.T) {
	if _, err := exec.LookPath("openssl"); err != nil {
		testkit.Skip(t, "openssl", err.Error())
	}
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "block-servers.md"))
	must(t, err)
	bin := command(t)
	t.Chdir(t.TempDir())
	commands := regexp.MustCompile(`(?m)^ {4}((openssl|cp) .*)$`).FindAllStringSubmatch(string(text), -1)
	if len(commands) != 6 {
		t.Fatalf("%d commands are in the page", len(commands))
	}
	for _, c := range commands {
		if out, err := exec.CommandContext(t.Context(), "sh", "-c", c[1]).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", c[1], err, out)
		}
	}
	s := startBlockd(t, bin, "127.0.0.1:0", "--cache-bytes", "64MiB", "--tls-cert", "server.pem", "--tls-key", "server.key", "--tls-client-ca", "clients.pem")
	must(t, os.WriteFile("trace.jsonl", []byte(`{"timestamp": 0, "input_length": 48, "output_length": 1, "hash_ids": [1, 2, 3]}`+"\n"), 0o600))
	replay := regexp.MustCompile(`(?m)^ {4}kvlane (replay .*)$`).FindStringSubmatch(string(text))
	for run := range 2 {
		code, stdout, stderr := execute(t, words(strings.ReplaceAll(strings.ReplaceAll(replay[1], "127.0.0.1:7440", s.addr), `"`, ""))...)
		if code != exitOK || strings.Contains(stdout, "from remote  3") != (run == 1) {
			t.Errorf("replay %d: exit code %d: %s %s", run, code, stdout, stderr)
		}
	}
	rest, err := s.end(t, syscall.SIGTERM)
	if err != nil || !strings.Contains(rest, "0 refused, 0 denied") {
		t.Errorf("%v, %q, %s", err, rest, s.stderr.String())
	}
}
