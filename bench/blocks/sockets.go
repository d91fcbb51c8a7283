package blocks

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/blockio"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/sys/hostmem"
	"github.com/kvlane/kvlane/wire"
)

// sockets is the baseline: a client and a server that pipeline frames of the protocol without
// parsing them. The client sends a new request for each received result. It receives pieces into
// slots, several with one system call, and computes their checksums. Neither side allocates memory
// per request.
type sockets struct {
	client   net.Conn
	server   net.Conn
	served   chan struct{} // closed when the server's goroutine has returned
	requests []byte        // one request for each slot
	request  int           // length of a request in bytes
	slots    []byte        // results with their pieces
	result   int           // length of a result with its piece in bytes
	piece    int           // length of a piece in bytes
	sum      uint64
	sent     []time.Time // send time by slot
}

// openSockets connects a client and a server with depth slots for pieces like piece.
func openSockets(ctx context.Context, piece []byte, depth int) (_ *sockets, err error) {
	request, result, err := frames(piece)
	if err != nil {
		return nil, err
	}
	s := &sockets{
		requests: bytes.Repeat(request, depth), request: len(request), result: len(result), piece: len(piece), sum: xxh3.Hash(piece),
		sent: make([]time.Time, depth), served: make(chan struct{}),
	}
	if s.slots, err = hostmem.Alloc(int64(depth * len(result))); err != nil {
		return nil, err
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
		return nil, errors.Join(fmt.Errorf("connect bare sockets: %w", err), hostmem.Free(s.slots))
	}
	go func() {
		defer close(s.served)
		serveFrames(s.server, bytes.Repeat(result, depth), s.request, s.result)
	}()
	return s, nil
}

// frames returns the frames of a request and of its result including the piece.
func frames(piece []byte) (request, result []byte, err error) {
	l, p := blockio.DefaultLimits(), blockio.Packer{}
	q := blockio.Request{
		Op: blockio.OpRetrieve, ID: 1, RemainingMillis: 1000, Entries: []blockio.Entry{{Key: block.Key{1}, Identity: 1, Length: uint64(len(piece)), EndShard: 1}},
	}
	r := blockio.Result{
		Op: blockio.OpRetrieve, ID: 1, Status: blockio.StatusOK, Credits: 1, Bytes: q.Entries[0].Length,
		Entries: []blockio.EntryResult{{Status: blockio.StatusOK, Bytes: q.Entries[0].Length, Sum: xxh3.Hash(piece)}},
	}
	body, err := p.Request(nil, &q, &l)
	if err == nil {
		request, err = frame(body)
	}
	if err == nil {
		body, err = p.Result(nil, &r, &l)
	}
	if err == nil {
		result, err = frame(body, piece)
	}
	return request, result, err
}

func frame(body []byte, data ...[]byte) ([]byte, error) {
	var b bytes.Buffer
	w := wire.NewFrameWriter(&b)
	err := errors.Join(w.Append(body, data...), w.Flush())
	return b.Bytes(), err
}

// serveFrames sends one result for each request until the connection ends.
func serveFrames(nc net.Conn, results []byte, request, result int) {
	in := make([]byte, len(results)/result*request)
	for have := 0; ; {
		n, err := nc.Read(in[have:])
		if err != nil {
			return
		}
		have += n
		whole := have / request
		if _, err := nc.Write(results[:whole*result]); err != nil {
			return
		}
		have = copy(in, in[whole*request:have])
	}
}

func (*sockets) name() string { return Sockets }

// run implements subject.
func (s *sockets) run(d time.Duration, t *times) error {
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
		n, err := s.client.Read(s.slots[at:])
		if err != nil {
			return err
		}
		at, now = at+n, time.Now()
		first := slot
		for ; (slot+1)*s.result <= at; slot++ {
			if xxh3.Hash(s.slots[(slot+1)*s.result-s.piece:(slot+1)*s.result]) != s.sum {
				return fmt.Errorf("a piece over bare sockets has other bytes: %w", errdefs.ErrCorrupt)
			}
			t.add(now.Sub(s.sent[slot]))
			s.sent[slot] = now
		}
		if now.After(end) {
			open -= slot - first
		} else if _, err := s.client.Write(s.requests[:(slot-first)*s.request]); err != nil {
			return err
		}
		if slot == len(s.sent) {
			slot, at = 0, 0
		}
	}
	return nil
}

func (s *sockets) close() error {
	err := errors.Join(s.client.Close(), s.server.Close())
	<-s.served
	return errors.Join(err, hostmem.Free(s.slots))
}
