package main

import (
	"encoding/binary"
	"encoding/json"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvlane/kvlane/transfer/mooncake"
)

// handshakePeer starts a peer that answers each request of Mooncake's handshake with the result of
// answer. It returns the peer's address.
func handshakePeer(t *testing.T, answer func(kind byte, name string) []byte) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	name := l.Addr().String()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			var head [9]byte
			if _, err := io.ReadFull(c, head[:]); err == nil {
				body := answer(head[8], name)
				b := binary.LittleEndian.AppendUint64(nil, uint64(len(body)+1))
				_, _ = c.Write(append(append(b, head[8]), body...))
				_, _ = io.CopyN(io.Discard, c, int64(binary.LittleEndian.Uint64(head[:])-1))
			}
			_ = c.Close()
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-done
	})
	return name
}

// TestTransferGetKeepsTheFile checks that a failed transfer leaves the output file unchanged.
func TestTransferGetKeepsTheFile(t *testing.T) {
	data, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(data.Addr().String())
	_ = data.Close() // no process listens at this port
	name := handshakePeer(t, func(_ byte, name string) []byte {
		number, err := net.LookupPort("tcp", port)
		if err != nil {
			t.Error(err)
		}
		b, err := json.Marshal(mooncake.Segment{
			Name: name, Protocol: mooncake.ProtocolTCP, DataHost: "127.0.0.1", DataPort: number, Version: 2,
			Buffers: []mooncake.Buffer{{Name: "cpu:0", Addr: 4096, Length: 4096}},
		})
		if err != nil {
			t.Error(err)
		}
		return b
	})
	file := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(file, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	code, _, stderr := execute(t, "transfer", "get", name, file)
	if code != exitFailure {
		t.Errorf("exit code %d: %s", code, stderr)
	}
	if b, err := os.ReadFile(file); err != nil || string(b) != "precious" {
		t.Errorf("the file has %q, %v", b, err)
	}
}

// TestHostileAnswerIsNoUsageError checks that an invalid answer of a peer is a failure and not
// wrong usage.
func TestHostileAnswerIsNoUsageError(t *testing.T) {
	for _, answer := range []string{"{                    ", `{"name":"\u0007","buffers":7}`, `{"name":"x","protocol":"tcp","tcp_data_port":-1}`, `{"status":"\u001b[2J"}`} {
		name := handshakePeer(t, func(byte, string) []byte { return []byte(answer) })
		for _, args := range [][]string{{"probe", name}, {"ls", name}, {"get", name, "-"}, {"probe", name, "--protocol", "tcp"}, {"ls", name, "--protocol", "tcp"}} {
			code, stdout, stderr := execute(t, append([]string{"transfer"}, args...)...)
			if code != exitFailure || strings.Contains(stderr, "--help") || strings.ContainsAny(stdout+stderr, "\a\x1b") {
				t.Errorf("%v, answer %s: exit code %d: %q %q", args, answer, code, stdout, stderr)
			}
		}
	}
}
