package main

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"io"
	"maps"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/kvlane/kvlane/bench/calls"
	"github.com/kvlane/kvlane/internal/testkit"
)

// echoServer starts an echo server and returns its address.
func echoServer(t *testing.T, args ...string) (*running, string) {
	t.Helper()
	p := interruptible(t, append([]string{"rpc", "serve", "--listen", "127.0.0.1:0"}, args...)...)
	address, rest, _ := strings.Cut(p.word(t, "echo server "), ";")
	if rest != " interrupt to end\n" {
		t.Errorf("after the address: %q", rest)
	}
	return p, address
}

// The examples of the help and of the documentation run against one server.
func TestRPCExamples(t *testing.T) {
	testkit.SkipRace(t, "other tests run these commands too")
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "rpc.md"))
	must(t, err)
	t.Chdir(t.TempDir())
	must(t, os.WriteFile("blocks.bin", []byte("attached"), 0o600))
	p, address := echoServer(t)
	var lines []string
	for _, m := range regexp.MustCompile(`(?m)^ {4}kvlane (rpc .*?)(?: +#.*)?$`).FindAllStringSubmatch(string(page), -1) {
		lines = append(lines, m[1])
	}
	if len(lines) < 3 {
		t.Fatalf("%d commands are in the page", len(lines))
	}
	forEachCommand(func(path string, cmd *cobra.Command) {
		if strings.HasPrefix(path, "rpc ") {
			for _, m := range regexp.MustCompile(`(?m)^ +kvlane (rpc .*)$`).FindAllStringSubmatch(cmd.Example, -1) {
				lines = append(lines, m[1])
			}
		}
	})
	for _, line := range lines {
		if strings.HasPrefix(line, "rpc serve") {
			continue // the server runs
		}
		args := words(strings.ReplaceAll(line, "127.0.0.1:8000", address))
		if strings.HasPrefix(line, "rpc bench") {
			args = append(args, "--duration", "2ms", "--rounds", "1")
		} else if strings.Contains(line, "--rdma") {
			args = append(args, "--rdma-provider", "soft")
		}
		if code, stdout, stderr := execute(t, args...); code != exitOK || stdout == "" {
			t.Errorf("%s: exit code %d, %s%s", line, code, stdout, stderr)
		}
	}
	if _, rest := p.stop(); !regexp.MustCompile(`^\d+ requests, 0 failed, 0 broken connections\n$`).MatchString(rest) {
		t.Errorf("the server ended with %q", rest)
	}
}

func TestRPCCallReturnsMessageAndAttachment(t *testing.T) {
	t.Chdir(t.TempDir())
	_, address := echoServer(t)
	sent := make([]byte, 5<<20+123)
	_, _ = rand.Read(sent)
	must(t, os.WriteFile("sent", sent, 0o600))
	code, stdout, stderr := execute(t, "rpc", "call", "--addr", address, "--message", "a\x1b[31mb", "--attachment", "sent", "--out", "got")
	if code != exitOK || stdout != "a\\x1b[31mb\n" {
		t.Fatalf("exit code %d, %q, %s", code, stdout, stderr)
	}
	got, err := os.ReadFile("got")
	if must(t, err); !bytes.Equal(got, sent) {
		t.Errorf("%d bytes came back, not the %d that were sent", len(got), len(sent))
	}
	code, stdout, _ = execute(t, "rpc", "call", "--addr", address, "--attachment", "sent")
	if code != exitOK || !strings.HasPrefix(stdout, "\nattachment: 5") {
		t.Errorf("exit code %d, %q", code, stdout)
	}
}

func TestRPCRefuses(t *testing.T) {
	t.Chdir(t.TempDir())
	credentialFiles(t)
	f, err := os.Create("huge")
	must(t, err)
	must(t, f.Truncate(maxAttachmentBytes+1))
	must(t, f.Close())
	for line, want := range map[string]string{
		"serve --listen 0.0.0.0:0":    "permit it with --insecure",
		"serve --listen :0":           "permit it with --insecure",
		"serve --listen nowhere":      "missing port",
		"serve --tokens tokens":       "need TLS",
		"serve --tls-cert server.pem": "must be given together",
		"serve --rdma --tokens tokens --tls-cert server.pem --tls-key server.key": "no effect on connections with TLS",
		"call --rdma --tls-ca server.pem":                                         "no effect on connections with TLS",
		"serve --gpu":                                                             "add that, or omit --gpu",
		"call --rdma --device sim":                                                "add that, or omit --device",
		"serve --listen unix:/x":                                                  "give HOST:PORT",
		"call --addr nowhere":                                                     "not HOST:PORT",
		"call --addr unix:":                                                       "the path is empty",
		"call --timeout 0s":                                                       "must be positive",
		"call --token tokens":                                                     "need TLS",
		"call --attachment huge":                                                  "longer than",
		"bench --callers 0":                                                       "must be 1 to 1024",
		"bench --sizes 64MiB":                                                     "calls of 67108864 bytes",
		"bench --attachments x":                                                   "--attachments",
		"bench --rounds -1":                                                       "must be 1 to 1000",
		"bench --tls-ca server.pem":                                               "has no effect without --addr",
		"bench --addr nowhere":                                                    "not HOST:PORT",
		"bench x":                                                                 "unknown command",
	} {
		code, stdout, stderr := execute(t, append([]string{"rpc"}, words(line)...)...)
		if code != exitUsage || !strings.Contains(stderr, want) || stdout != "" {
			t.Errorf("%s: exit code %d, %q %s", line, code, stdout, stderr)
		}
	}
}

func TestRPCFails(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	closed := l.Addr().String()
	must(t, l.Close())
	hostile, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer hostile.Close()
	go func() {
		for {
			c, err := hostile.Accept()
			if err != nil {
				return
			}
			_, _ = io.ReadFull(c, make([]byte, 12))
			_, _ = c.Write([]byte("HTTP/1.1 400 Bad Request\r\n\r\n"))
			_ = c.Close()
		}
	}()
	for line, want := range map[string]string{
		"call --addr " + closed:                                             "start kvlane rpc serve",
		"call --addr unix:missing":                                          "start kvlane rpc serve",
		"call --addr " + hostile.Addr().String():                            "give the address of a server of baidu_std",
		"call --attachment missing --addr " + closed:                        "no such file",
		"call --out missing/file --addr " + closed:                          "no such file",
		"bench --rounds 1 --duration 1ms --addr " + closed:                  "start kvlane rpc serve",
		"bench --rounds 1 --duration 1ms --addr " + hostile.Addr().String(): "give the address of a server of baidu_std",
		"serve --listen " + hostile.Addr().String():                         "another process listens",
	} {
		if code, _, stderr := execute(t, append([]string{"rpc"}, words(line)...)...); code != exitFailure || !strings.Contains(stderr, want) {
			t.Errorf("%s: exit code %d, %s", line, code, stderr)
		}
	}
}

// Clients need the credentials of the server. Bytes that are no RPC break their connection only.
func TestRPCServeChecksCredentials(t *testing.T) {
	t.Chdir(t.TempDir())
	credentialFiles(t)
	must(t, os.WriteFile("token", []byte("0123456789abcdef\n"), 0o600))
	must(t, os.WriteFile("wrong", []byte("0123456789abcdeF\n"), 0o600))
	p, address := echoServer(t, "--tls-cert", "server.pem", "--tls-key", "server.key", "--tokens", "tokens")
	call := func(args ...string) (int, string, string) {
		return execute(t, append([]string{"rpc", "call", "--addr", address, "--message", "hello"}, args...)...)
	}
	if code, stdout, stderr := call("--tls-ca", "server.pem", "--token", "token"); code != exitOK || stdout != "hello\n" {
		t.Errorf("with a token: exit code %d, %s", code, stderr)
	}
	for want, args := range map[string][]string{
		"may need TLS: give --tls-ca": nil,
		"give --token FILE":           {"--tls-ca", "server.pem"},
		"one of the tokens":           {"--tls-ca", "server.pem", "--token", "wrong"},
	} {
		if code, stdout, stderr := call(args...); code != exitFailure || stdout != "" || !strings.Contains(stderr, want) {
			t.Errorf("%v: exit code %d, %q, %s", args, code, stdout, stderr)
		}
	}
	if _, rest := p.stop(); !strings.HasPrefix(rest, "3 requests, ") {
		t.Errorf("the server ended with %q", rest)
	}
}

func TestRPCServeSurvivesHostileBytes(t *testing.T) {
	p, address := echoServer(t)
	for _, b := range []string{"GET / HTTP/1.1\r\n\r\n", "PRPC\xff\xff\xff\xff\x00\x00\x00\x00", "PRPC\x00\x00\x00\x01\x00\x00\x00\x02", "PRPC\x00\x00\x00\x04\x00\x00\x00\x04\xff\xff\xff\xff"} {
		c, err := net.Dial("tcp", address)
		must(t, err)
		_, err = c.Write([]byte(b))
		must(t, err)
		if got, _ := io.ReadAll(c); len(got) > 0 {
			t.Errorf("%q: the server answered %q", b, got)
		}
		must(t, c.Close())
	}
	if code, stdout, stderr := execute(t, "rpc", "call", "--addr", address, "--message", "still here"); code != exitOK || stdout != "still here\n" {
		t.Errorf("exit code %d, %s", code, stderr)
	}
	if _, rest := p.stop(); rest != "1 requests, 0 failed, 4 broken connections\n" {
		t.Errorf("the server ended with %q", rest)
	}
}

func TestRPCBenchByRDMA(t *testing.T) {
	code, stdout, stderr := execute(t, "rpc", "bench", "--callers", "2", "--sizes", "4KiB", "--attachments", "1MiB", "--rounds", "1", "--duration", "2ms",
		"--rdma", "--gpu", "--rdma-provider", "soft", "--device", "sim", "--json")
	if code != exitOK || stderr != "" {
		t.Fatalf("exit code %d, standard error %q, output:\n%s", code, stderr, stdout)
	}
	var r calls.Report
	must(t, json.Unmarshal([]byte(stdout), &r))
	subjects := map[string]int{}
	for _, p := range r.Points {
		subjects[p.Subject]++
	}
	if want := map[string]int{calls.Sockets: 2, calls.RPC: 2, calls.RDMA: 2, calls.GPU: 1, calls.Direct: 1}; !maps.Equal(subjects, want) || r.Fabric == "" {
		t.Errorf("subjects %v of %q", subjects, r.Fabric)
	}
	for _, args := range [][]string{{"--gpu"}, {"--rdma", "--addr", "127.0.0.1:1"}} {
		if code, _, _ := execute(t, append([]string{"rpc", "bench"}, args...)...); code != exitUsage {
			t.Errorf("%v: exit code %d", args, code)
		}
	}
}

func TestRPCBench(t *testing.T) {
	name := filepath.Join(t.TempDir(), "run.json")
	code, stdout, stderr := execute(t, "rpc", "bench", "--callers", "1,2", "--sizes", "4KiB", "--attachments", "100KiB", "--rounds", "1", "--duration", "2ms", "--out", name, "--json")
	if code != exitOK || stderr != "" {
		t.Fatalf("exit code %d, standard error %q, output:\n%s", code, stderr, stdout)
	}
	b, err := os.ReadFile(name)
	must(t, err)
	for _, b := range [][]byte{b, []byte(stdout)} {
		var r calls.Report
		if err := json.Unmarshal(b, &r); err != nil || r.Kind != calls.Kind || len(r.Points) != 8 || r.Command == "" {
			t.Errorf("report %+v, %v", r, err)
		}
	}
}
