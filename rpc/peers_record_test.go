package rpc_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/kvlane/kvlane/rpc/internal/frame"
	"github.com/kvlane/kvlane/rpc/internal/golden"
)

// recorder forwards connections to a server frame by frame, and records the frames.
type recorder struct {
	l     net.Listener
	to    string
	began time.Time
	group sync.WaitGroup

	mu      sync.Mutex
	capture golden.Capture
}

// record starts a recorder for the server at an address.
func record(t *testing.T, to string) *recorder {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &recorder{l: l, to: to, began: time.Now()}
	r.group.Go(func() {
		for n := 0; ; n++ {
			client, err := l.Accept()
			if err != nil {
				return // closed
			}
			server, err := net.Dial("tcp", to)
			if err != nil {
				_ = client.Close()
				return
			}
			name := fmt.Sprintf("conn%d", n)
			up, down := &golden.Direction{Conn: name, ToServer: true}, &golden.Direction{Conn: name}
			r.mu.Lock()
			r.capture.Directions = append(r.capture.Directions, up, down)
			r.mu.Unlock()
			r.group.Go(func() { r.forward(server, client, up) })
			r.group.Go(func() { r.forward(client, server, down) })
		}
	})
	return r
}

// forward copies the frames of a direction.
func (r *recorder) forward(to, from net.Conn, d *golden.Direction) {
	for {
		b := make([]byte, frame.HeaderBytes)
		_, err := io.ReadFull(from, b)
		if err == nil {
			var h frame.Header
			if h, err = frame.Parse(b); err == nil {
				b = append(b, make([]byte, h.Body)...)
				_, err = io.ReadFull(from, b[frame.HeaderBytes:])
			}
		}
		r.mu.Lock()
		s := golden.Segment{Seconds: time.Since(r.began).Seconds(), Conn: d.Conn, ToServer: d.ToServer, Bytes: len(b)}
		if err != nil {
			s.Bytes, s.End = 0, true
		} else {
			d.Bytes = append(d.Bytes, b...)
		}
		r.capture.Order = append(r.capture.Order, s)
		r.mu.Unlock()
		if err == nil {
			_, err = to.Write(b)
		}
		if err != nil {
			_ = errors.Join(to.Close(), from.Close()) // the other direction ends too
			return
		}
	}
}

// close waits for the end of the connections and returns the capture.
func (r *recorder) close() *golden.Capture {
	_ = r.l.Close() // accepts no more
	r.group.Wait()
	return &r.capture
}
