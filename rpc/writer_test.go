package rpc

import (
	"errors"
	"net"
	"testing"
	"time"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/rpc/internal/frame"
	"github.com/kvlane/kvlane/rpc/internal/pb"
)

// A peer that reads nothing makes the writer close the connection at twice the limit. All queued
// frames are released.
func TestWriterClosesAtTwiceTheLimit(t *testing.T) {
	near, far := net.Pipe()
	defer func() { _ = far.Close() }() // the test is over
	w := newWriter(near, time.Minute, 1000)
	queued, dropped := 0, make(chan struct{}, 100)
	send := func() error {
		o, err := newOutput(nil, frame.Message, new(pb.Meta), make([]byte, 100), nil)
		if err != nil {
			return err
		}
		o.sent = func() { dropped <- struct{}{} }
		queued++
		return w.write(o)
	}
	first := make(chan error, 1)
	o, err := newOutput(nil, frame.Message, new(pb.Meta), make([]byte, 100), nil)
	if err != nil {
		t.Fatal(err)
	}
	go func() { first <- w.write(o) }() // waits for the peer
	for {
		w.mu.Lock()
		busy := w.busy
		w.mu.Unlock()
		if busy {
			break
		}
		time.Sleep(time.Millisecond)
	}
	for err = nil; err == nil; err = send() {
	}
	if !errors.Is(err, errdefs.ErrBusy) {
		t.Errorf("beyond the limit: %v", err)
	}
	if err := <-first; err == nil {
		t.Error("the first write succeeded")
	}
	for range queued {
		<-dropped
	}
}
