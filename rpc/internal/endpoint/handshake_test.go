package endpoint_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/rdma/soft"
	"github.com/kvlane/kvlane/rpc/internal/endpoint"
	"github.com/kvlane/kvlane/rpc/internal/hello"
)

// exhausted makes a side unable to post receives.
func exhausted(t *testing.T, s *side) {
	t.Helper()
	for range 32 * 8 {
		b, err := s.receive.Acquire(t.Context())
		check(t, err)
		t.Cleanup(b.Release)
	}
}

// Both sides fall back to TCP, on the same connection, with the captured bytes.
func TestFallback(t *testing.T) {
	for _, v := range []hello.Version{hello.V2, hello.V3} {
		for name, c := range map[string]struct {
			client, server bool // the side cannot use RDMA
			serverHasRDMA  bool
		}{
			"server without RDMA":   {server: true},
			"server without memory": {server: true, serverHasRDMA: true},
			"client without memory": {client: true, serverHasRDMA: true},
		} {
			a, b := pair(t, soft.Options{}, 8)
			o := &b.options
			if !c.serverHasRDMA {
				o = nil
			} else if c.server {
				exhausted(t, b)
			}
			if c.client {
				exhausted(t, a)
			}
			nc, ns := tcp(t)
			served := make(chan error, 1)
			go func() {
				if c.client { // it sends no hello
					served <- nil
					return
				}
				e, refusal, err := endpoint.Accept(context.Background(), ns, o, b.options.Stall)
				if e != nil || refusal == nil {
					err = errors.Join(err, errors.New("the server uses RDMA"))
				}
				served <- err
			}()
			e, refusal, err := endpoint.Dial(t.Context(), nc, v, &a.options)
			if e != nil || refusal == nil || err != nil {
				t.Errorf("%s: dial: %v, %v", name, refusal, err)
			}
			check(t, <-served)
			for _, d := range [][2]net.Conn{{nc, ns}, {ns, nc}} {
				_, err := d[0].Write([]byte("PRPC"))
				check(t, err)
				got := make([]byte, 4)
				if _, err := io.ReadFull(d[1], got); err != nil || string(got) != "PRPC" {
					t.Errorf("%s: after the fallback: %q, %v", name, got, err)
				}
			}
		}
	}
}

// The bytes of a refusing server are those that brpc sends. A client that refuses sends ACK 0.
func TestFallbackBytes(t *testing.T) {
	for _, v := range []hello.Version{hello.V2, hello.V3} {
		a, _ := pair(t, soft.Options{}, 8)
		nc, ns := tcp(t)
		var group sync.WaitGroup
		group.Go(func() {
			_, refusal, err := endpoint.Accept(context.Background(), ns, nil, time.Minute)
			if refusal == nil || err != nil {
				t.Errorf("accept: %v, %v", refusal, err)
			}
			_ = ns.Close()
		})
		h := hello.Hello{Version: v, BlockBytes: 8192, SendQueue: 16, RecvQueue: 16, QPNum: 1}
		b, err := h.Append(nil)
		check(t, err)
		_, err = nc.Write(b)
		check(t, err)
		got := make([]byte, len(hello.Refusal(v)))
		if _, err := io.ReadFull(nc, got); err != nil || !bytes.Equal(got, hello.Refusal(v)) {
			t.Errorf("version %d: %x, %v", v, got, err)
		}
		_, err = nc.Write(hello.Ack(false))
		check(t, err)
		if rest, err := io.ReadAll(nc); err != nil || len(rest) > 0 {
			t.Errorf("after the ack: %x, %v", rest, err)
		}

		client, server := tcp(t)
		group.Go(func() {
			if e, refusal, err := endpoint.Dial(context.Background(), client, v, &a.options); e != nil || refusal == nil || err != nil {
				t.Errorf("dial: %v, %v", refusal, err)
			}
			_ = client.Close()
		})
		got, offer := make([]byte, 200), 30
		n, err := io.ReadAtLeast(server, got, offer)
		if err != nil || !hello.Is(got[:4]) || v == hello.V2 && n != 40 {
			t.Errorf("version %d: an offer of %d bytes: %x, %v", v, n, got[:n], err)
		}
		_, err = server.Write(hello.Refusal(v))
		check(t, err)
		if rest, err := io.ReadAll(server); err != nil || !bytes.Equal(rest, []byte{0, 0, 0, 0}) {
			t.Errorf("version %d: the client answers %x, %v", v, rest, err)
		}
		group.Wait()
	}
}

// A peer that breaks the handshake gets no endpoint, and the connection is not usable.
func TestBrokenHandshakes(t *testing.T) {
	a, b := pair(t, soft.Options{}, 8)
	a.options.Stall, b.options.Stall = 300*time.Millisecond, 300*time.Millisecond
	valid := hello.Hello{Version: hello.V2, BlockBytes: 8192, SendQueue: 16, RecvQueue: 16, QPNum: 1}
	v2, err := valid.Append(nil)
	check(t, err)
	valid.Version = hello.V3
	v3, err := valid.Append(nil)
	check(t, err)
	for name, c := range map[string]struct {
		sent []byte
		o    *endpoint.Options
		want error
	}{
		"nothing":            {nil, &b.options, nil},
		"no hello":           {[]byte("PRPCPRPC"), &b.options, errdefs.ErrMismatch},
		"no ack":             {v2, &b.options, nil},
		"ack after refusal":  {append(bytes.Clone(v2), 0, 0, 0, 1), nil, errdefs.ErrMismatch},
		"half of the hello":  {v3[:20], &b.options, nil},
		"length of 39 bytes": {[]byte("RDMA\x00\x27\x00\x02"), &b.options, errdefs.ErrMismatch},
	} {
		nc, ns := tcp(t)
		_, err := nc.Write(c.sent)
		check(t, err)
		e, refusal, err := endpoint.Accept(t.Context(), ns, c.o, 300*time.Millisecond)
		if e != nil || refusal != nil || err == nil || !errors.Is(err, c.want) && c.want != nil {
			t.Errorf("%s: %v, %v", name, refusal, err)
		}
	}
	nc, ns := tcp(t)
	_, err = ns.Write(v3)
	check(t, err)
	if e, refusal, err := endpoint.Dial(t.Context(), nc, hello.V2, &a.options); e != nil || refusal != nil || !errors.Is(err, errdefs.ErrMismatch) {
		t.Errorf("a hello of another version: %v, %v", refusal, err)
	}
}

// The hello has the length of the blocks that the connection posts.
func TestDefectHelloHasBlocksOfTheConnection(t *testing.T) {
	for _, v := range []hello.Version{hello.V2, hello.V3} {
		a, _ := pair(t, soft.Options{}, 8)
		nc, ns := tcp(t)
		dialed := make(chan struct{})
		go func() {
			defer close(dialed)
			_, _, _ = endpoint.Dial(context.Background(), nc, v, &a.options) // it fails when ns is closed
		}()
		h, err := hello.Read(ns)
		if err != nil || int64(h.BlockBytes) != a.receive.BlockBytes() || h.SendQueue != 16 {
			t.Errorf("version %d: %+v, %v", v, h, err)
		}
		check(t, ns.Close())
		<-dialed // its blocks are returned
	}
}
