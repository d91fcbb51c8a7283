package rpc

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/rpc/internal/frame"
	"github.com/kvlane/kvlane/rpc/internal/pb"
)

// A peer that reads nothing makes the writer close the connection when too many bytes wait that
// have not waited for space. All queued frames are released.
func TestWriterClosesAtTheLimit(t *testing.T) {
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
		begun := w.busy && len(w.pending) == 0 // otherwise the first frame fails too
		w.mu.Unlock()
		if begun {
			break
		}
		time.Sleep(time.Millisecond)
	}
	for err = nil; err == nil; err = send() {
	}
	if !errors.Is(err, errdefs.ErrBusy) {
		t.Errorf("beyond the limit: %v", err)
	}
	if err := <-first; err != nil { // another goroutine goes on with it
		t.Error(err)
	}
	for range queued {
		<-dropped
	}
}

// A connection was idle, and now has too many bytes to write. The peer had no time to read them: it
// is not refused.
func TestWriterWaitsForAPeerThatWasIdle(t *testing.T) {
	near, far := net.Pipe()
	defer func() { _, _ = far.Close(), near.Close() }() // the test is over
	w := newWriter(near, time.Minute, 1000)
	o, err := newOutput(nil, frame.Message, new(pb.Meta), make([]byte, 2000), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.enqueue(o); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := w.admit(ctx, 1, true); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("while the write begins: %v", err)
	}
	w.moved.Store(time.Now().Add(-2 * crowdedWait).UnixNano())
	if err := w.admit(t.Context(), 1, true); !errors.Is(err, errdefs.ErrBusy) {
		t.Errorf("after a pause: %v", err)
	}
}

// Frames of goroutines that run at the same time are written together, in the order of each
// goroutine. Writes after a pause get a new deadline.
func TestWriterWritesFramesTogether(t *testing.T) {
	near, far := net.Pipe()
	defer func() { _ = far.Close() }() // the test is over
	w := newWriter(near, 500*time.Millisecond, 1<<20)
	in := frame.NewReader(far, frame.Limits{Body: 1 << 20, Meta: 1 << 10, Stall: time.Minute})
	for range 2 {
		const goroutines, frames = 20, 10
		var group sync.WaitGroup
		for g := range int64(goroutines) {
			group.Go(func() {
				for i := range int32(frames) {
					o, err := newOutput(nil, frame.Message, &pb.Meta{CorrelationId: &g, ContentType: &i}, make([]byte, 2*inHead*int(i%2)), nil)
					if err == nil {
						err = w.write(o)
					}
					if err != nil {
						t.Error(err)
					}
				}
			})
		}
		next := make(map[int64]int32)
		for range goroutines * frames {
			h, b, err := in.Next()
			if err != nil {
				t.Fatal(err)
			}
			m, err := decodeMeta(b)
			if err != nil {
				t.Fatal(err)
			}
			if m.GetContentType() != next[m.GetCorrelationId()] || h.Body-h.Meta != 2*inHead*int64(m.GetContentType()%2) {
				t.Fatalf("frame %d of goroutine %d, with %d bytes", m.GetContentType(), m.GetCorrelationId(), h.Body-h.Meta)
			}
			next[m.GetCorrelationId()]++
		}
		group.Wait()
		time.Sleep(600 * time.Millisecond) // longer than a write may stall
	}
}

// The frame that fills the socket is written in two parts, by two goroutines. The peer gets each
// byte once.
func TestWriterFinishesAFrame(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }() // the test is over
	near, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = near.Close() }() // the test is over
	far, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = far.Close() }() // the test is over
	w, message := newWriter(near, time.Minute, 1<<30), make([]byte, soonBytes/2)
	var sent int64
	// write reports whether another goroutine goes on with the write.
	write := func() bool {
		o, err := newOutput(nil, frame.Message, &pb.Meta{CorrelationId: &sent}, message, nil)
		if err == nil {
			err = w.write(o)
		}
		if err != nil {
			t.Fatal(err)
		}
		sent++
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.busy
	}
	for !write() {
	}
	write() // the frame that must follow the one in two parts
	in := frame.NewReader(far, frame.Limits{Body: 1 << 20, Meta: 1 << 10, Stall: time.Minute})
	for want := range sent {
		_, b, err := in.Next()
		if err != nil {
			t.Fatal(err)
		}
		if m, err := decodeMeta(b); err != nil || m.GetCorrelationId() != want {
			t.Fatalf("frame %d instead of %d, %v", m.GetCorrelationId(), want, err)
		}
	}
}
