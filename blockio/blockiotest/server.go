// Package blockiotest is the conformance suite of clients of the block protocol over a transport.
// Its Server keeps blocks in memory and misbehaves on request.
package blockiotest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/blockio"
	"github.com/kvlane/kvlane/wire"
)

// Behavior is the behavior of a Server. The zero value is correct.
type Behavior struct {
	// Hold delays stores and retrieves until it is closed or they are cancelled. Nil: no delay.
	Hold <-chan struct{}
	// IgnoreCancel leaves cancellations without a result, and Hold is not ended by them.
	IgnoreCancel bool
	// Refuse returns the status of a piece that is not stored or retrieved, or StatusOK.
	Refuse func(q *blockio.Request, e *blockio.Entry) blockio.Status
	// Silent leaves all requests without a result.
	Silent bool
	// Close closes the connection in place of handling the request, if it returns true.
	Close func(q *blockio.Request) bool
	// Change changes data before they are sent, after their checksum.
	Change func(data []byte)
	// Answer replaces the result of a request.
	Answer func(q *blockio.Request, r *blockio.Result)
}

// Server is a block server in memory. Its methods are safe for concurrent use.
type Server struct {
	limits blockio.Limits
	boot   [16]byte

	mu       sync.Mutex
	behavior Behavior
	images   map[block.Key][]byte
	leased   map[block.Key]int
	leases   map[uint64][]block.Key
	last     uint64
	peak     int // requests in progress at a time, of one connection
	requests map[blockio.Op]int
}

// NewServer returns an empty server with these limits.
func NewServer(l blockio.Limits) *Server {
	return &Server{
		limits: l, boot: [16]byte{1}, images: make(map[block.Key][]byte), leased: make(map[block.Key]int),
		leases: make(map[uint64][]block.Key), requests: make(map[blockio.Op]int),
	}
}

// Behave sets the behavior for later requests.
func (s *Server) Behave(b Behavior) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.behavior = b
}

// Requests returns the number of requests with that operation.
func (s *Server) Requests(op blockio.Op) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.requests[op]
}

// Peak returns the largest number of requests that a connection has had in progress.
func (s *Server) Peak() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.peak
}

// session is a connection of a server.
type session struct {
	s       *Server
	nc      net.Conn
	limits  blockio.Limits
	formats map[uint64]*block.Layout

	write  sync.Mutex
	w      *wire.FrameWriter
	packer blockio.Packer

	mu       sync.Mutex
	progress map[uint64]*job
	leases   []uint64
}

// job is a store or retrieve in progress.
type job struct {
	cancel context.CancelFunc
	done   chan struct{}
}

// Serve serves a connection until it ends.
func (s *Server) Serve(tb testing.TB, nc net.Conn) {
	tb.Helper()
	c := &session{s: s, nc: nc, w: wire.NewFrameWriter(nc), progress: make(map[uint64]*job), formats: make(map[uint64]*block.Layout)}
	var jobs sync.WaitGroup
	defer jobs.Wait()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	defer func() { _ = nc.Close() }()
	defer c.endLeases()
	err := c.serve(ctx, &jobs)
	if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, net.ErrClosed) && !isNetwork(err) {
		tb.Errorf("the server refused its client: %v", err)
	}
}

func isNetwork(err error) bool {
	var n net.Error
	return errors.As(err, &n)
}

func (c *session) serve(ctx context.Context, jobs *sync.WaitGroup) error {
	r := wire.NewFrameReader(c.nc, blockio.MaxHelloBytes, blockio.MaxRequestBytes)
	body, _, err := r.Next()
	if err != nil {
		return err
	}
	var h blockio.Hello
	if err := h.Decode(body); err != nil {
		return err
	}
	for _, f := range h.Formats {
		l, err := block.NewLayout(f.ShardBytes)
		if err != nil {
			return err
		}
		c.formats[blockio.IdentityHash(f.Identity)] = l
	}
	c.limits = c.s.limits.Min(h.Limits)
	r.LimitBody(c.limits.BodyBytes())
	answer := blockio.HelloResult{ID: h.ID, Status: blockio.StatusOK, Boot: c.s.boot, Limits: c.limits}
	if string(h.Token) == "wrong" {
		answer = blockio.HelloResult{ID: h.ID, Status: blockio.StatusDenied}
	}
	b, err := answer.Append(nil)
	if err != nil {
		return err
	}
	if err := errors.Join(c.w.Append(b), c.w.Flush()); err != nil {
		return err
	}
	for {
		body, n, err := r.Next()
		if err != nil {
			return err
		}
		q := new(blockio.Request)
		if err := q.Decode(body, &c.limits); err != nil {
			return err
		}
		if n != q.DataBytes() {
			return fmt.Errorf("%v with %d bytes of data, of %d", q.Op, n, q.DataBytes())
		}
		data := make([]byte, n)
		if err := r.ReadData(data); err != nil {
			return err
		}
		if err := c.handle(ctx, jobs, q, data); err != nil {
			return err
		}
	}
}

// handle begins a request.
func (c *session) handle(ctx context.Context, jobs *sync.WaitGroup, q *blockio.Request, data []byte) error {
	s := c.s
	s.mu.Lock()
	s.requests[q.Op]++
	behavior := s.behavior
	s.mu.Unlock()
	if behavior.Close != nil && behavior.Close(q) {
		return net.ErrClosed
	}
	if behavior.Silent {
		return nil
	}
	if q.Op == blockio.OpCancel {
		if behavior.IgnoreCancel {
			return nil
		}
		jobs.Go(func() { c.cancel(q) })
		return nil
	}
	if q.Op != blockio.OpStore && q.Op != blockio.OpRetrieve {
		return c.send(q, c.simple(q), nil, behavior)
	}
	ctx, cancel := context.WithTimeout(ctx, time.Duration(q.RemainingMillis)*time.Millisecond)
	if behavior.IgnoreCancel {
		ctx = context.WithoutCancel(ctx)
	}
	j := &job{cancel: cancel, done: make(chan struct{})}
	c.mu.Lock()
	c.progress[q.ID] = j
	n := len(c.progress)
	c.mu.Unlock()
	s.mu.Lock()
	s.peak = max(s.peak, n)
	s.mu.Unlock()
	jobs.Go(func() {
		defer cancel()
		defer close(j.done)
		c.move(ctx, q, data, behavior)
	})
	return nil
}

func (c *session) cancel(q *blockio.Request) {
	c.mu.Lock()
	j := c.progress[q.IDs[0]]
	c.mu.Unlock()
	status := blockio.StatusNotFound
	if j != nil {
		j.cancel()
		<-j.done
		status = blockio.StatusOK
	}
	_ = c.send(q, &blockio.Result{Status: status}, nil, Behavior{}) // the client ends the connection
}

// move carries out a store or retrieve.
func (c *session) move(ctx context.Context, q *blockio.Request, data []byte, behavior Behavior) {
	r := &blockio.Result{Status: blockio.StatusOK, Credits: 1}
	var out [][]byte
	if behavior.Hold != nil {
		select {
		case <-behavior.Hold:
		case <-ctx.Done():
			r.Status = blockio.StatusCanceled
		}
	}
	for i := range q.Entries {
		if r.Status == blockio.StatusCanceled {
			break
		}
		e := &q.Entries[i]
		var piece []byte
		if q.Op == blockio.OpStore {
			piece, data = data[:e.Length], data[e.Length:]
		}
		piece, status := c.s.piece(c.formats[e.Identity], q, e, piece, behavior)
		result := blockio.EntryResult{Status: status}
		if status == blockio.StatusOK {
			result.Bytes, result.Sum = e.Length, xxh3.Hash(piece)
			r.Bytes += e.Length
			if q.Op == blockio.OpRetrieve {
				if behavior.Change != nil {
					behavior.Change(piece)
				}
				out = append(out, piece)
			}
		}
		r.Entries = append(r.Entries, result)
	}
	for _, e := range r.Entries {
		if e.Status != blockio.StatusOK {
			r.Status = blockio.StatusPartial
		}
	}
	c.mu.Lock()
	delete(c.progress, q.ID)
	c.mu.Unlock()
	_ = c.send(q, r, out, behavior) // the client ends the connection
}

// piece stores a piece, or returns a copy of a stored one.
func (s *Server) piece(l *block.Layout, q *blockio.Request, e *blockio.Entry, data []byte, behavior Behavior) ([]byte, blockio.Status) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if behavior.Refuse != nil {
		if status := behavior.Refuse(q, e); status != blockio.StatusOK {
			return nil, status
		}
	}
	image := s.images[e.Key]
	switch {
	case l == nil:
		return nil, blockio.StatusMismatch
	case e.Offset+e.Length > uint64(l.ImageBytes()):
		return nil, blockio.StatusInvalid
	case q.Op == blockio.OpRetrieve && image == nil:
		return nil, blockio.StatusNotFound
	case q.Op == blockio.OpRetrieve:
		return append([]byte(nil), image[e.Offset:][:e.Length]...), blockio.StatusOK
	case xxh3.Hash(data) != e.Sum:
		return nil, blockio.StatusCorrupt
	case image == nil:
		image = make([]byte, l.ImageBytes())
		s.images[e.Key] = image
	}
	copy(image[e.Offset:], data)
	return data, blockio.StatusOK
}

// simple carries out a request without data.
func (c *session) simple(q *blockio.Request) *blockio.Result {
	s := c.s
	s.mu.Lock()
	defer s.mu.Unlock()
	r := &blockio.Result{Status: blockio.StatusOK, Credits: 1}
	switch q.Op {
	case blockio.OpHello, blockio.OpStore, blockio.OpRetrieve, blockio.OpFlush, blockio.OpCancel:
	case blockio.OpKeepAlive:
		r.Credits = 0
	case blockio.OpAttach:
		r.Credits, r.Status = 0, blockio.StatusNotSupported
	case blockio.OpExist:
		for _, k := range q.Keys {
			r.Presence = append(r.Presence, blockio.Presence{Present: s.images[k.Key] != nil})
		}
	case blockio.OpLease:
		var keys []block.Key
		for _, k := range q.Keys {
			if s.images[k.Key] == nil {
				break
			}
			keys = append(keys, k.Key)
			s.leased[k.Key]++
		}
		if len(keys) > 0 {
			s.last++
			s.leases[s.last] = keys
			c.leases = append(c.leases, s.last)
			r.LeaseID, r.Leased, r.LeaseMillis = s.last, uint32(len(keys)), q.LeaseMillis
		}
	case blockio.OpRenew, blockio.OpRelease:
		for _, id := range q.IDs {
			status := blockio.StatusOK
			if s.leases[id] == nil {
				status = blockio.StatusNotFound
			} else if r.LeaseMillis = q.LeaseMillis; q.Op == blockio.OpRelease {
				s.release(id)
			}
			r.Statuses = append(r.Statuses, status)
		}
	case blockio.OpDelete:
		for _, k := range q.Keys {
			status := blockio.StatusOK
			if s.images[k.Key] == nil {
				status = blockio.StatusNotFound
			} else if s.leased[k.Key] > 0 {
				status = blockio.StatusLeased
			} else {
				delete(s.images, k.Key)
			}
			r.Statuses = append(r.Statuses, status)
		}
	case blockio.OpStat:
		r.Stat.Blocks, r.Stat.Leased = uint64(len(s.images)), uint64(len(s.leased))
	}
	for _, status := range r.Statuses {
		if status != blockio.StatusOK {
			r.Status = blockio.StatusPartial
		}
	}
	return r
}

// release ends a lease. The caller holds mu.
func (s *Server) release(id uint64) {
	for _, k := range s.leases[id] {
		if s.leased[k]--; s.leased[k] == 0 {
			delete(s.leased, k)
		}
	}
	delete(s.leases, id)
}

func (c *session) endLeases() {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	for _, id := range c.leases {
		c.s.release(id)
	}
}

func (c *session) send(q *blockio.Request, r *blockio.Result, data [][]byte, behavior Behavior) error {
	r.Op, r.ID, r.Phase = q.Op, q.ID, q.Phase
	if behavior.Answer != nil {
		behavior.Answer(q, r)
		if r.Bytes == 0 {
			data = nil
		}
	}
	c.write.Lock()
	defer c.write.Unlock()
	b, err := c.packer.Result(nil, r, &c.limits)
	if err != nil {
		return err
	}
	return errors.Join(c.w.Append(b, data...), c.w.Flush())
}
