package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvlane/kvlane/internal/etcdtest"
	"github.com/kvlane/kvlane/internal/testkit"
	engine "github.com/kvlane/kvlane/transfer"
)

// Device memory on either side can be transferred with Mooncake's protocol, like host memory.
func TestTransferMooncakeDeviceMemory(t *testing.T) {
	p, segment := serveSegment(t, "transfer", "serve", "--name", "127.0.0.1:0", "--buffer-size", "1MiB", "--use-vram", "--device", "sim")
	if code, stdout, stderr := execute(t, "transfer", "ls", segment); code != exitOK || !strings.Contains(stdout, "cuda:0") {
		t.Errorf("exit code %d: %s%s", code, stdout, stderr)
	}
	if code, stdout, stderr := execute(t, "transfer", "get", segment, "-"); code != exitOK || stdout != strings.Repeat("\x00", 1<<20) {
		t.Errorf("exit code %d, %d bytes: %s", code, len(stdout), stderr)
	}
	for _, op := range []string{"read", "write"} {
		code, _, stderr := execute(t, "bench", "transfer", "--segment", segment, "--operation", op, "--block-size", "4KiB", "--batch-size", "4", "--threads", "2",
			"--duration", "1ms", "--buffer-size", "1MiB", "--check", "--use-vram", "--device", "sim")
		if code != exitOK {
			t.Errorf("%s: exit code %d: %s", op, code, stderr)
		}
	}
	if code, rest := p.stop(); code != exitOK || !strings.Contains(rest, " 0 rejected, 0 failed") {
		t.Errorf("exit code %d: %s", code, rest)
	}
}

// TestDefectNoWordForAnAddressThatIsNotTheListeners checks that a target that listens on all
// addresses must advertise one of them, also with a metadata server.
func TestDefectNoWordForAnAddressThatIsNotTheListeners(t *testing.T) {
	server := interruptible(t, "transfer", "metadata", "--listen", "127.0.0.1:0")
	uri, _, _ := strings.Cut(server.word(t, "metadata "), ";")
	_, port, _ := strings.Cut(freeAddress(t), ":")
	serve := []string{"transfer", "serve", "--protocol", "auto", "--metadata", uri, "--name", "kv", "--buffer-size", "1MiB", "--listen", "0.0.0.0:" + port}
	if code, _, stderr := execute(t, serve...); code != exitUsage || !strings.Contains(stderr, "advertise") {
		t.Errorf("exit code %d: %s", code, stderr)
	}
	p := interruptible(t, append(serve, "--advertise", "localhost:"+port)...)
	p.word(t, "segment ")
	if code, stdout, stderr := execute(t, "transfer", "probe", "kv", "--protocol", "auto", "--metadata", uri); code != exitOK {
		t.Errorf("exit code %d: %s%s", code, stdout, stderr)
	}
}

// put, get, probe and ls work with kvlane's own segments as with Mooncake's: on each path, with an
// address and with a metadata server.
func TestTransferNativeByHand(t *testing.T) {
	server := interruptible(t, "transfer", "metadata", "--listen", "127.0.0.1:0")
	uri, _, _ := strings.Cut(server.word(t, "metadata "), ";")
	nativeByHand(t, map[string][]string{"127.0.0.1:0": nil, "kv": {"--metadata", uri}})
}

// Segments of kvlane's own protocol are found in etcd, over TLS too. They leave with their process.
func TestClusterOfSegments(t *testing.T) {
	for _, version := range etcdtest.Versions {
		t.Run(version, func(t *testing.T) {
			plain := []string{"--metadata", "etcd://" + etcdtest.Start(t, version).Addr + "/test"}
			nativeByHand(t, map[string][]string{"kv": plain})
			find := append([]string{"transfer", "probe", "kv", "--protocol", "auto"}, plain...)
			if code, _, stderr := execute(t, find...); code != exitFailure || !strings.Contains(stderr, "not found") {
				t.Errorf("a segment whose process has ended: exit code %d: %s", code, stderr)
			}
			dir := t.TempDir()
			cert, key := filepath.Join(dir, "cert"), filepath.Join(dir, "key")
			certPEM, keyPEM := testkit.Certificate(t)
			must(t, errors.Join(os.WriteFile(cert, certPEM, 0o600), os.WriteFile(key, keyPEM, 0o600)))
			secure := "etcd://" + etcdtest.StartTLS(t, version, cert, key, cert).Addr + "/test"
			nativeByHand(t, map[string][]string{"kv": {"--metadata", secure, "--etcd-ca", cert, "--etcd-cert", cert, "--etcd-key", key}})
		})
	}
}

// nativeByHand serves segments by names, with the flags of each, and uses them.
func nativeByHand(t *testing.T, segments map[string][]string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "f")
	want := bytes.Repeat([]byte("0123456789"), 5000)
	if err := os.WriteFile(file, want, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, where := range segments {
		p := interruptible(t, append([]string{"transfer", "serve", "--protocol", "auto", "--name", name, "--buffer-size", "1MiB"}, where...)...)
		segment, _, _ := strings.Cut(p.word(t, "segment "), ": ")
		do := func(args ...string) string {
			t.Helper()
			code, stdout, stderr := execute(t, append(append([]string{"transfer"}, args...), where...)...)
			if code != exitOK {
				t.Errorf("%v: exit code %d: %s", args, code, stderr)
			}
			return stdout
		}
		for _, protocol := range []string{"auto", "shm", "tcp"} {
			do("put", segment, file, "--protocol", protocol, "--offset", "100", "--notify", "it is there by "+protocol)
			if line := p.word(t, "notification for "); !strings.Contains(line, "it is there by "+protocol) {
				t.Errorf("%q", line)
			}
			if got := do("get", segment, "-", "--protocol", protocol, "--offset", "100", "--length", "50000"); got != string(want) {
				t.Errorf("%s: %d bytes are read", protocol, len(got))
			}
		}
		var d engine.Description
		if err := json.Unmarshal([]byte(do("ls", segment, "--protocol", "auto", "--json")), &d); err != nil || len(d.Buffers) != 1 || d.Buffers[0].Length != 1<<20 {
			t.Errorf("%v, %+v", err, d)
		}
		if got := do("ls", segment, "--protocol", "auto"); !strings.Contains(got, "memfd") {
			t.Errorf("%s", got)
		}
		if got := do("probe", segment, "--protocol", "auto"); !strings.Contains(got, "answered in") {
			t.Errorf("%s", got)
		}
		for _, bad := range [][]string{
			{"put", segment, file, "--protocol", "tape"},
			{"get", segment, "-", "--protocol", "tcp", "--buffer", "1"},
			{"get", segment, "-", "--protocol", "tcp", "--offset", "1MiB"},
			{"ls", segment, "--protocol", "tcp", "--cluster", "c"},
		} {
			if code, _, stderr := execute(t, append(append([]string{"transfer"}, bad...), where...)...); code != exitUsage {
				t.Errorf("%v: exit code %d: %s", bad, code, stderr)
			}
		}
		p.stop()
	}
}

// TestDefectPathsThatCannotBe checks that --protocol refuses paths that need a device or a NIC if
// the command opens neither.
func TestDefectPathsThatCannotBe(t *testing.T) {
	file := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, command := range [][]string{{"put", "127.0.0.1:1/kv", file}, {"get", "127.0.0.1:1/kv", "-"}, {"ls", "127.0.0.1:1/kv"}, {"probe", "127.0.0.1:1/kv"}} {
		for _, path := range []string{"nvlink", "rdma"} {
			code, _, stderr := execute(t, append(append([]string{"transfer"}, command...), "--protocol", path)...)
			if code != exitUsage || !strings.Contains(stderr, "must be one of mooncake, auto, shm, tcp") {
				t.Errorf("%v by %s: exit code %d: %s", command, path, code, stderr)
			}
		}
	}
}
