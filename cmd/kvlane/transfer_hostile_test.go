package main

import (
	"encoding/binary"
	"encoding/json"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/kvlane/kvlane/transfer/mooncake"
)

// handshakePeer answers each request of Mooncake's handshake with what answer returns, and returns its address.
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

// TestTransferGetKeepsTheFile: a transfer that fails leaves the file as it was.
func TestTransferGetKeepsTheFile(t *testing.T) {
	data, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(data.Addr().String())
	_ = data.Close() // nothing listens there
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
