package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/kvlane/kvlane/internal/autonic"
	"github.com/kvlane/kvlane/rdma/soft"
)

// A call by RDMA returns the bytes of its attachment. A server without RDMA is called by TCP, with
// a note.
func TestRPCByRDMA(t *testing.T) {
	p, err := soft.New(soft.Options{})
	must(t, err)
	t.Cleanup(func() { must(t, p.Close()) })
	ctx := autonic.WithProvider(context.Background(), p)
	metrics := freeAddress(t)
	testRPCByRDMA(ctx, t, []string{"--metrics-addr", metrics}, nil, func() {
		answer, err := http.Get("http://" + metrics + "/metrics") //nolint:noctx // it is of this process
		must(t, err)
		text, err := io.ReadAll(answer.Body)
		must(t, err)
		must(t, answer.Body.Close())
		for _, want := range []string{`kvlane_arena_regions{pool="rpc-receive"} 1`, `kvlane_arena_regions{pool="rpc-send"} 1`} {
			if !strings.Contains(string(text), "\n"+want+"\n") {
				t.Errorf("the metrics have no %q", want)
			}
		}
		if strings.Contains(string(text), "rpc-device") {
			t.Error("the metrics have memory of a device")
		}
	})
}

// Server and client use NICs of this machine, with host memory and with memory of a simulated GPU.
func TestVerbsRPC(t *testing.T) {
	own, nic := verbsNICs(t)
	for _, gpu := range []string{"", "--gpu --device sim"} {
		testRPCByRDMA(context.Background(), t, append(words("--nic "+nic), words(gpu)...), append(words("--nic "+own), words(gpu)...), func() {})
	}
}

func testRPCByRDMA(ctx context.Context, t *testing.T, server, client []string, called func()) {
	t.Helper()
	t.Chdir(t.TempDir())
	sent := make([]byte, 1<<20+123)
	_, _ = rand.Read(sent)
	must(t, os.WriteFile("sent", sent, 0o600))
	call := func(address, want string) {
		t.Helper()
		var out, errs bytes.Buffer
		args := slices.Concat(words("rpc call --message hello --rdma --attachment sent --out got --addr "+address), client)
		if code := run(ctx, args, &out, &errs); code != exitOK || out.String() != "hello\n" || !strings.Contains(errs.String(), want) || want == "" && errs.Len() > 0 {
			t.Errorf("exit code %d, %q, %s", code, out.String(), errs.String())
		}
		got, err := os.ReadFile("got")
		if must(t, err); !bytes.Equal(got, sent) {
			t.Errorf("%d bytes came back, not the %d that were sent", len(got), len(sent))
		}
	}
	s := interruptibleIn(ctx, t, slices.Concat(words("rpc serve --listen 127.0.0.1:0 --rdma"), server)...)
	address, _, _ := strings.Cut(s.word(t, "echo server "), ";")
	call(address, "")
	called()
	if _, rest := s.stop(); rest != "1 requests, 0 failed, 0 broken connections, 1 by RDMA, 0 refused RDMA\n" {
		t.Errorf("the server ended with %q", rest)
	}
	plain, address := echoServer(t)
	call(address, "RDMA was not used")
	plain.stop()
}
