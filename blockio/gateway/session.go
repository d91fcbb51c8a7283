package gateway

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net"
	"sync"

	"github.com/kvlane/kvlane/blockio"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/rdma"
	"github.com/kvlane/kvlane/wire"
)

var le = binary.LittleEndian

const (
	copyBytes = 64 << 10
	// maxBodyBytes is the length of the longest frame after hello: one with blockio.MaxKeys keys.
	maxBodyBytes = headBytes + 40*blockio.MaxKeys
	window       = 4       // reads in progress for a store
	smallBytes   = 2 << 10 // of a small slot: a flag of up to 82 entries
	headBytes    = 40      // of a frame
	answerBit    = 0x80    // of the operation of results
)

// session is a client's connection with its queue pair. It has a goroutine for each direction of
// the connection. With a queue pair it has two more: for the client's requests, and for completions
// of its own.
type session struct {
	g     *Gateway
	nc    net.Conn // of the client
	inner net.Conn // of the server
	allow bool
	ctx   context.Context
	end   context.CancelCauseFunc
	work  sync.WaitGroup

	upMu sync.Mutex // guards frames for the server
	up   *wire.FrameWriter

	downMu sync.Mutex // guards frames for the client
	down   *wire.FrameWriter

	mu       sync.Mutex
	limits   blockio.Limits // zero before the hello's result
	queue    *queue
	requests map[uint64]*blockio.Request // with addresses, until their results
	last     *blockio.Request            // whose flag was written last
}

func newSession(g *Gateway, nc, inner net.Conn, allow bool) *session {
	s := &session{
		g: g, nc: nc, inner: inner, allow: allow, requests: make(map[uint64]*blockio.Request),
		up: wire.NewFrameWriter(inner), down: wire.NewFrameWriter(nc),
	}
	s.ctx, s.end = context.WithCancelCause(context.Background())
	return s
}

// run ends when one of the connections has ended, and all goroutines with it.
func (s *session) run() {
	context.AfterFunc(s.ctx, func() {
		s.mu.Lock()
		if s.queue != nil {
			s.queue.fail(context.Cause(s.ctx))
		}
		s.mu.Unlock()
		nc := s.nc
		if t, ok := nc.(interface{ NetConn() net.Conn }); ok {
			nc = t.NetConn() // closing TLS may wait for the peer
		}
		_, _ = nc.Close(), s.inner.Close() // they end reads and writes
	})
	s.work.Go(func() { s.end(s.forwardRequests()) })
	s.work.Go(func() { s.end(s.forwardResults()) })
	s.work.Wait()
	err := context.Cause(s.ctx)
	if errors.Is(err, errdefs.ErrInvalid) || errors.Is(err, errdefs.ErrCorrupt) || errors.As(err, new(*rdma.WCError)) {
		s.g.refused.Add(1)
	}
	if s.queue != nil {
		s.queue.close()
	}
}

// forward copies a frame and its data, whose body is not changed. The caller holds the writer.
func forward(w *wire.FrameWriter, r *wire.FrameReader, body []byte, data uint64, buf []byte) error {
	if err := w.AppendHead(body, data); err != nil {
		return err
	}
	for data > 0 {
		b := buf[:min(uint64(len(buf)), data)]
		if err := r.ReadData(b); err != nil {
			return err
		}
		if err := w.AppendData(b); err != nil {
			return err
		}
		if err := w.Flush(); err != nil {
			return err
		}
		data -= uint64(len(b))
	}
	return w.Flush()
}

// op returns the operation of a frame's body, without the bit of results, and the frame's request.
func op(body []byte) (blockio.Op, uint64, error) {
	if len(body) < headBytes {
		return 0, 0, fmt.Errorf("frame of %d bytes: %w", len(body), errdefs.ErrInvalid)
	}
	return blockio.Op(body[1] &^ answerBit), le.Uint64(body[8:]), nil
}

// forwardRequests forwards the requests of the connection, and handles attach.
func (s *session) forwardRequests() error {
	r, buf := wire.NewFrameReader(s.nc, blockio.MaxHelloBytes, blockio.MaxRequestBytes), make([]byte, copyBytes)
	for {
		body, data, err := r.Next()
		if err != nil {
			return err
		}
		kind, _, err := op(body)
		if err != nil {
			return err
		}
		r.LimitBody(maxBodyBytes) // only the first frame is a hello
		if kind == blockio.OpAttach {
			if err := s.attach(body, data); err != nil {
				return err
			}
			continue
		}
		s.upMu.Lock()
		err = forward(s.up, r, body, data, buf)
		s.upMu.Unlock()
		if err != nil {
			return err
		}
	}
}

// attach connects a queue pair to that of the client.
func (s *session) attach(body []byte, data uint64) error {
	s.mu.Lock()
	limits, attached := s.limits, s.queue != nil
	s.mu.Unlock()
	var q blockio.Request
	if limits == (blockio.Limits{}) || attached || data > 0 {
		return fmt.Errorf("attach before the result of hello, for a second time, or with data: %w", errdefs.ErrInvalid)
	}
	if err := q.Decode(body, &limits); err != nil {
		return err
	}
	r := blockio.Result{Op: q.Op, ID: q.ID, Phase: q.Phase, Status: blockio.StatusDenied}
	if s.allow {
		e, err := s.open(q.Endpoint, &limits)
		if r.Status = blockio.StatusOf(err); err == nil {
			r.Endpoint = e
			s.g.attached.Add(1)
		}
	} else {
		s.g.denied.Add(1)
	}
	var p blockio.Packer
	b, err := p.Result(nil, &r, &limits)
	if err != nil {
		return err
	}
	s.downMu.Lock()
	defer s.downMu.Unlock()
	return errors.Join(s.down.Append(b), s.down.Flush())
}

// open opens the queue pair and starts its goroutines.
func (s *session) open(to rdma.Endpoint, l *blockio.Limits) (rdma.Endpoint, error) {
	q, err := s.g.openQueue(int(l.Credits), int64(l.BodyBytes()), func(err error) { s.end(err) })
	if err != nil {
		return rdma.Endpoint{}, err
	}
	if err := q.connect(to); err != nil {
		q.close()
		return rdma.Endpoint{}, err
	}
	s.mu.Lock()
	s.queue = q
	s.mu.Unlock()
	if s.ctx.Err() != nil {
		q.fail(context.Cause(s.ctx))
	}
	s.work.Go(func() { s.end(q.run(s.ctx)) })
	s.work.Go(func() { s.end(s.receive(q, l)) })
	return q.ch.Pairs[0].Endpoint, nil
}

// receive receives the requests of the queue pair.
func (s *session) receive(q *queue, l *blockio.Limits) error {
	var wcs [16]rdma.WC
	for {
		if err := q.ch.Receives.RequestNotify(false); err != nil {
			return err
		}
		for n := len(wcs); n == len(wcs); {
			var err error
			if n, err = q.ch.Receives.Poll(wcs[:]); err != nil {
				return err
			}
			for i := range wcs[:n] {
				if err := s.request(q, &wcs[i], l); err != nil {
					return err
				}
			}
		}
		if err := q.ch.WaitReceive(s.ctx); err != nil {
			return err
		}
	}
}

// request forwards a request of the queue pair, with the bytes of a store.
func (s *session) request(q *queue, wc *rdma.WC, l *blockio.Limits) error {
	if err := wc.Err(); err != nil {
		return err
	}
	e, err := q.receives.Extent(q.buffers[wc.WRID])
	if err != nil {
		return err
	}
	r := new(blockio.Request)
	if err := r.Decode(e.Bytes()[:wc.ByteLen], l); err != nil {
		return err
	}
	if err := q.receive(wc.WRID); err != nil {
		return err
	}
	if !r.Addressed || r.ResponseAddr == 0 {
		return fmt.Errorf("%v by RDMA without addresses: %w", r.Op, errdefs.ErrInvalid)
	}
	s.mu.Lock()
	twice := s.requests[r.ID] != nil
	s.requests[r.ID] = r
	s.mu.Unlock()
	if twice {
		return fmt.Errorf("request %d is in progress: %w", r.ID, errdefs.ErrInvalid)
	}
	s.g.requests.Add(1)
	local := *r
	local.Addressed, local.ResponseAddr, local.ResponseKey = false, 0, 0
	local.Entries = append([]blockio.Entry(nil), r.Entries...)
	for i := range local.Entries {
		local.Entries[i].Addr, local.Entries[i].MemoryKey = 0, 0
	}
	var p blockio.Packer
	body, err := p.Request(nil, &local, l)
	if err != nil {
		return err
	}
	s.upMu.Lock()
	defer s.upMu.Unlock()
	if err := s.up.AppendHead(body, local.DataBytes()); err != nil {
		return err
	}
	if r.Op == blockio.OpStore {
		if err := s.fetch(q, r); err != nil {
			return err
		}
	}
	return s.up.Flush()
}

// chunk is a piece of memory that is being read.
type chunk struct {
	slot
	done chan error
}

// wait waits for the end of the read. If the session ends before, the slot is released when the
// queue pair is closed.
func (s *session) wait(c chunk) error {
	select {
	case err := <-c.done:
		if err != nil {
			err = errors.Join(fmt.Errorf("read a client's memory: %w", err), c.release())
		}
		return err
	case <-s.ctx.Done():
		s.abandon(c)
		return context.Cause(s.ctx)
	}
}

// abandon releases the slot of a read when nothing accesses it any more.
func (s *session) abandon(c chunk) {
	s.g.sessions.Go(func() {
		<-c.done        //nolint:errcheck // the chunk is given up
		_ = c.release() // host memory is zeroed without an error
	})
}

// fetch reads the memory of a store, and forwards it. The caller holds upMu.
func (s *session) fetch(q *queue, r *blockio.Request) (err error) {
	var reading []chunk
	defer func() {
		for _, c := range reading {
			s.abandon(c)
		}
	}()
	for i := range r.Entries {
		e := &r.Entries[i]
		for off := uint64(0); off < e.Length || len(reading) > 0; {
			if off < e.Length && len(reading) < window {
				n := min(e.Length-off, uint64(s.g.o.SlotBytes))
				c, err := s.read(q, rdma.SendWR{Opcode: rdma.WRRDMARead, RKey: e.MemoryKey, RemoteAddr: uint64(e.Addr) + off}, int64(n), len(reading) > 0)
				if err == nil {
					reading, off = append(reading, c), off+n
					continue
				}
				if !errors.Is(err, errdefs.ErrBusy) {
					return err
				}
			}
			c := reading[0]
			reading = reading[1:]
			if err := s.wait(c); err != nil {
				return err
			}
			b, err := c.bytes()
			if err == nil {
				err = errors.Join(s.up.AppendData(b), s.up.Flush())
			}
			if err = errors.Join(err, c.release()); err != nil {
				return err
			}
		}
	}
	return nil
}

// read starts a read to a new slot. With try it returns ErrBusy if there is none.
func (s *session) read(q *queue, wr rdma.SendWR, n int64, try bool) (c chunk, err error) {
	if c.slot, err = s.g.acquire(s.ctx, n, try); err != nil {
		return c, err
	}
	c.done = make(chan error, 1)
	wr.SGEs = []rdma.SGE{sge(c.Buffer, 0, n)}
	if err := q.post(func(err error) { c.done <- err }, wr); err != nil {
		return chunk{}, errors.Join(fmt.Errorf("read a client's memory: %w", err), c.release())
	}
	return c, nil
}

// forwardResults forwards the results of the server: those of requests with addresses by RDMA.
func (s *session) forwardResults() error {
	r, buf := wire.NewFrameReader(s.inner, math.MaxUint32, blockio.MaxRequestBytes), make([]byte, copyBytes)
	for first := true; ; first = false {
		body, data, err := r.Next()
		if err != nil {
			return err
		}
		kind, id, err := op(body)
		if err != nil {
			return err
		}
		s.mu.Lock()
		if first {
			var h blockio.HelloResult
			if h.Decode(body) == nil && h.Status == blockio.StatusOK {
				s.limits = h.Limits
			}
		}
		q, queue, limits := s.requests[id], s.queue, s.limits
		delete(s.requests, id)
		s.mu.Unlock()
		if q != nil {
			if err := s.complete(queue, q, append([]byte(nil), body...), r, &limits); err != nil {
				return err
			}
			continue
		}
		if kind == blockio.OpCancel && queue != nil {
			if err := s.quiesce(queue); err != nil {
				return err
			}
		}
		s.downMu.Lock()
		err = forward(s.down, r, body, data, buf)
		s.downMu.Unlock()
		if err != nil {
			return err
		}
	}
}

// complete writes the data of a result, and then its flag.
func (s *session) complete(queue *queue, q *blockio.Request, body []byte, data *wire.FrameReader, l *blockio.Limits) error {
	var r blockio.Result
	if err := r.Decode(body, l); err != nil {
		return err
	}
	if err := r.Answers(q); err != nil {
		return err
	}
	for i := range r.Entries {
		e := &q.Entries[i]
		for off := uint64(0); q.Op == blockio.OpRetrieve && off < r.Entries[i].Bytes; {
			n := min(r.Entries[i].Bytes-off, uint64(s.g.o.SlotBytes))
			b, err := s.fill(int64(n), func(b []byte) error { return data.ReadData(b) })
			if err != nil {
				return err
			}
			wr := rdma.SendWR{RKey: e.MemoryKey, RemoteAddr: uint64(e.Addr) + off, SGEs: []rdma.SGE{sge(b.Buffer, 0, int64(n))}}
			if err := queue.post(func(error) { _ = b.release() }, wr); err != nil {
				return err
			}
			off += n
		}
	}
	n, addr := int64(blockio.FlagHeadBytes+len(body)), uint64(q.ResponseAddr)
	b, err := s.fill(n, func(b []byte) error {
		le.PutUint64(b, blockio.CompletionWord(q.ID, q.Phase))
		le.PutUint32(b[8:], uint32(len(body)))
		copy(b[blockio.FlagHeadBytes:], body)
		return nil
	})
	if err != nil {
		return err
	}
	s.last = q
	rest := rdma.SendWR{RKey: q.ResponseKey, RemoteAddr: addr + 8, SGEs: []rdma.SGE{sge(b.Buffer, 8, n-8)}}
	word := rdma.SendWR{
		Opcode: rdma.WRRDMAWriteWithImm, Flags: rdma.SendSolicited, Imm: uint32(q.ID), RKey: q.ResponseKey, RemoteAddr: addr,
		SGEs: []rdma.SGE{sge(b.Buffer, 0, 8)},
	}
	return queue.post(func(error) { _ = b.release() }, rest, word) // zeroing host memory succeeds
}

// fill returns a slot with n bytes of fill.
func (s *session) fill(n int64, fill func(b []byte) error) (slot, error) {
	x, err := s.g.acquire(s.ctx, n, false)
	if err != nil {
		return slot{}, err
	}
	b, err := x.bytes()
	if err == nil {
		err = fill(b)
	}
	if err != nil {
		return slot{}, errors.Join(err, x.release())
	}
	return x, nil
}

// quiesce returns when all writes are in the client's memory: they have completed, and a read after
// the last flag has returned.
func (s *session) quiesce(q *queue) error {
	if err := q.wait(); err != nil || s.last == nil {
		return err
	}
	c, err := s.read(q, rdma.SendWR{Opcode: rdma.WRRDMARead, RKey: s.last.ResponseKey, RemoteAddr: uint64(s.last.ResponseAddr)}, 8, false)
	if err != nil {
		return err
	}
	if err := s.wait(c); err != nil {
		return err
	}
	return c.release()
}
