package sockets

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/kvlane/kvlane/bench/rounds"
	"github.com/kvlane/kvlane/internal/sys/hostmem"
)

// Name is the name of the subject.
const Name = "sockets"

// Options describe the frames of a connection.
type Options struct {
	// Request is the frame that the client sends. The server returns Result for each. If Result is
	// nil, it returns the request that it has received.
	Request, Result []byte
	// Depth is the number of requests in progress.
	Depth int
	// MaxRead is the length of the longest read. 0: no limit.
	MaxRead int
	// Check is called for each received result. Its error ends the run.
	Check func(result []byte) error
}

// Sockets is a client and a server in one process, connected over the loopback interface. The
// client sends a new request for each received result. It receives results into one slot for each
// request in progress, several with one system call.
type Sockets struct {
	o      Options
	client net.Conn
	server net.Conn
	served chan struct{} // closed when the server's goroutine has returned
	// requests has one request for each slot, slots the received results, and in the server's
	// received requests.
	requests, slots, in []byte
	result              int         // length of a result in bytes
	sent                []time.Time // send time by slot
}

// Open connects a client and a server. The depth must be positive. All requests in progress must
// fit the buffers of a connection if the depth is larger than one: they are at most 256 KiB.
func Open(ctx context.Context, o Options) (_ *Sockets, err error) {
	s := &Sockets{o: o, requests: bytes.Repeat(o.Request, o.Depth), result: len(o.Result), sent: make([]time.Time, o.Depth), served: make(chan struct{})}
	if o.Result == nil {
		s.result = len(o.Request)
	}
	if s.slots, err = hostmem.Alloc(int64(o.Depth * s.result)); err != nil {
		return nil, err
	}
	if s.in, err = hostmem.Alloc(int64(len(s.requests))); err != nil {
		return nil, errors.Join(err, hostmem.Free(s.slots))
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err == nil {
		s.client, err = new(net.Dialer).DialContext(ctx, "tcp", l.Addr().String())
		if err == nil {
			s.server, err = l.Accept()
		}
		err = errors.Join(err, l.Close())
	}
	if err != nil {
		if s.client != nil {
			err = errors.Join(err, s.client.Close())
		}
		return nil, errors.Join(fmt.Errorf("connect bare sockets: %w", err), hostmem.Free(s.slots), hostmem.Free(s.in))
	}
	go func() {
		defer close(s.served)
		s.serve(bytes.Repeat(o.Result, o.Depth))
	}()
	return s, nil
}

// serve returns one result for each complete request until the connection ends.
func (s *Sockets) serve(results []byte) {
	request := len(s.o.Request)
	for have := 0; ; {
		n, err := s.server.Read(s.piece(s.in[have:]))
		if err != nil {
			return
		}
		have += n
		whole := have / request
		if whole == 0 {
			continue
		}
		out := s.in[:whole*request]
		if len(results) > 0 {
			out = results[:whole*s.result]
		}
		if _, err := s.server.Write(out); err != nil {
			return
		}
		have = copy(s.in, s.in[whole*request:have])
	}
}

// piece returns the part of b for the next read.
func (s *Sockets) piece(b []byte) []byte {
	if s.o.MaxRead > 0 && s.o.MaxRead < len(b) {
		return b[:s.o.MaxRead]
	}
	return b
}

// Name returns the name of the subject.
func (*Sockets) Name() string { return Name }

// Run implements rounds.Subject.
func (s *Sockets) Run(d time.Duration, t *rounds.Times) error {
	now := time.Now()
	end := now.Add(d)
	for i := range s.sent {
		s.sent[i] = now
	}
	if _, err := s.client.Write(s.requests); err != nil {
		return err
	}
	slot, at := 0, 0 // slot of the next result, and end of the received bytes in it
	for open := len(s.sent); open > 0; {
		n, err := s.client.Read(s.piece(s.slots[at:]))
		if err != nil {
			return err
		}
		at, now = at+n, time.Now()
		first := slot
		for ; (slot+1)*s.result <= at; slot++ {
			if err := s.o.Check(s.slots[slot*s.result : (slot+1)*s.result]); err != nil {
				return err
			}
			t.Add(now.Sub(s.sent[slot]))
			s.sent[slot] = now
		}
		if now.After(end) {
			open -= slot - first
		} else if _, err := s.client.Write(s.requests[:(slot-first)*len(s.o.Request)]); err != nil {
			return err
		}
		if slot == len(s.sent) {
			slot, at = 0, 0
		}
	}
	return nil
}

// Close closes the connection and releases the memory.
func (s *Sockets) Close() error {
	err := errors.Join(s.client.Close(), s.server.Close())
	<-s.served
	return errors.Join(err, hostmem.Free(s.slots), hostmem.Free(s.in))
}
