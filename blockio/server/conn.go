package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"runtime"
	"sync"
	"time"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/blockio"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/blockhost"
	"github.com/kvlane/kvlane/wire"
)

// conn is a connection of a client.
type conn struct {
	s      *Server
	tenant string
	nc     net.Conn // or TLS over raw
	raw    net.Conn
	limits blockio.Limits
	epoch  uint64 // of the hello
	spaces map[uint64]*blockhost.Space
	r      *wire.FrameReader
	w      *wire.FrameWriter
	leases leases

	refused []byte // memory for bytes of refused pieces

	ctx   context.Context // ends with the connection
	stop  context.CancelFunc
	works sync.WaitGroup

	reading, writing deadline // of the goroutines of read and send

	admitted bool          // counted as a connection of tenant
	answers  chan *answer  // it has space for all credits and for control requests
	freed    chan struct{} // buffers one; notified when a request has ended

	mu       sync.Mutex
	ended    []*answer          // for further requests
	kept     int                // bytes of ended
	progress map[uint64]*answer // by request id, until its result is sent
	credits  int                // that the client has not used
	controls int                // control requests in progress
	held     int64              // the cost of all requests
	waiting  bool               // for freed
	over     bool               // answers is closed
}

// answer is a request with its result.
type answer struct {
	request  blockio.Request
	arrived  time.Time
	deadline time.Time
	late     bool // its time ended before it had memory, or within a store
	entries  int  // of the request
	result   blockio.Result
	blocks   []blockhost.Block // of each entry of a retrieve; pinned until the result is sent

	// conn.mu guards these.
	canceled bool
	queued   bool  // for the sender
	work     *work // in progress, or given up; nil: none
	cost     int64 // of its memory
	shared   bool  // cost is part of the server's memory
}

// hello reads the hello and sends its result. It releases slot when the credential is known.
func (s *Server) hello(nc, raw net.Conn, slot *wire.Slot) (*conn, error) {
	c := &conn{
		s: s, nc: nc, raw: raw, spaces: make(map[uint64]*blockhost.Space), progress: make(map[uint64]*answer), w: wire.NewFrameWriter(nc),
		freed: make(chan struct{}, 1), r: wire.NewFrameReader(nc, blockio.MaxHelloBytes, blockio.MaxRequestBytes), leases: leases{all: make(map[uint64]*lease)},
	}
	c.ctx, c.stop = context.WithCancel(s.ctx)
	body, data, err := c.r.Next()
	if err != nil {
		return c, err
	}
	var h blockio.Hello
	if err = h.Decode(body); err == nil && data > 0 {
		err = fmt.Errorf("hello with data: %w", errdefs.ErrInvalid)
	}
	if err == nil {
		err = c.admit(&h, slot)
	}
	if errors.As(err, new(*blockio.VersionError)) {
		h.ID = 1 // its place in the frame is not known, and the version of the result is the answer
	}
	r := blockio.HelloResult{ID: h.ID, Status: blockio.StatusOf(err)}
	switch r.Status {
	case blockio.StatusStale:
		var stale *blockio.StaleError
		errors.As(err, &stale)
		r.Epoch = stale.Epoch
	case blockio.StatusDenied:
		s.denied.Add(1)
	case blockio.StatusNotSupported: // by the disk; clients take it for the need of TLS
		r.Status = blockio.StatusFailed
	default:
	}
	if err == nil {
		c.limits = s.o.Limits.Min(h.Limits)
		c.credits = int(c.limits.Credits)
		c.answers = make(chan *answer, 2*c.credits+controlRequests)
		c.r.LimitBody(c.limits.BodyBytes())
		r.Boot, r.Limits, r.Zone, c.epoch = s.boot, c.limits, s.o.Zone, h.Epoch
		keepAlive := time.Duration(c.limits.KeepAliveMillis) * time.Millisecond
		c.reading = deadline{set: nc.SetReadDeadline, keepAlive: keepAlive}
		c.writing = deadline{set: nc.SetWriteDeadline, keepAlive: keepAlive}
	}
	b, packErr := r.Append(nil) // a frame without a request's id gets no result
	if packErr == nil {
		packErr = errors.Join(c.w.Append(b), c.w.Flush())
	}
	return c, errors.Join(err, packErr)
}

// admit checks the credentials, and opens the identities if the tenant has a free connection.
func (c *conn) admit(h *blockio.Hello, slot *wire.Slot) (err error) {
	var state *tls.ConnectionState
	if t, ok := c.nc.(interface{ ConnectionState() tls.ConnectionState }); ok {
		cs := t.ConnectionState()
		state = &cs
	}
	if c.tenant, err = c.s.o.Auth.Tenant(state, h.Token); err != nil {
		return fmt.Errorf("%w: %w", blockio.ErrDenied, err)
	}
	if epoch := c.s.epoch(); h.Epoch != 0 && h.Epoch < epoch {
		return &blockio.StaleError{Epoch: epoch}
	}
	if c.admitted = c.s.connections.tryTake(c.tenant, 1); !c.admitted {
		c.s.full.Add(1)
		return fmt.Errorf("tenant %s has too many connections, of %d in all: %w", c.tenant, c.s.o.Connections, errdefs.ErrBusy)
	}
	c.s.slots.Release(slot)
	ctx, cancel := context.WithTimeout(c.ctx, time.Duration(h.RemainingMillis)*time.Millisecond)
	defer cancel()
	_ = c.raw.SetDeadline(time.Time{}) // the directories are opened until ctx ends
	for i := range h.Formats {
		l, err := block.NewLayout(h.Formats[i].ShardBytes)
		if err != nil {
			return err
		}
		space, err := c.s.o.Host.Space(ctx, c.tenant, block.Format{Identity: h.Formats[i].Identity, Layout: l})
		if err != nil {
			return err
		}
		c.spaces[blockio.IdentityHash(h.Formats[i].Identity)] = space
	}
	_ = c.raw.SetDeadline(time.Now().Add(helloTimeout)) // sending fails otherwise
	return nil
}

// run serves requests until the connection ends.
func (c *conn) run() {
	var sender sync.WaitGroup
	sender.Go(c.send)
	if err := c.read(); errors.Is(err, errdefs.ErrInvalid) || errors.Is(err, errdefs.ErrCorrupt) || errors.Is(err, errdefs.ErrMismatch) {
		c.s.refused.Add(1)
	}
	_ = c.raw.Close() // it ends a send in progress
	c.stop()
	c.mu.Lock()
	c.over = true
	close(c.answers)
	c.mu.Unlock()
	sender.Wait()
	c.leases.end()
	c.works.Wait()
}

// release ends the use of the identities, and the connection of the tenant.
func (c *conn) release() {
	c.stop()
	if c.admitted {
		c.s.connections.release(c.tenant, 1)
	}
	for _, s := range c.spaces {
		s.Release()
	}
}

// deadline is a deadline of a connection's reads or writes, for one goroutine. It is set again only
// after a part of the keep-alive time.
type deadline struct {
	set       func(time.Time) error
	keepAlive time.Duration
	last      time.Time
}

func (d *deadline) extend(now time.Time) error {
	if now.Sub(d.last) < d.keepAlive/8 {
		return nil
	}
	d.last = now
	return d.set(now.Add(lostAfter * d.keepAlive))
}

// read reads requests. It returns ErrInvalid for one that the protocol does not allow.
func (c *conn) read() error {
	for now := time.Now(); ; {
		if err := c.reading.extend(now); err != nil {
			return err
		}
		body, data, err := c.r.Next()
		if err != nil {
			return err
		}
		a := c.newAnswer()
		q := &a.request
		if err := q.Decode(body, &c.limits); err != nil {
			return err
		}
		if q.Addressed || q.ResponseAddr != 0 || data != q.DataBytes() {
			return fmt.Errorf("%v with addresses, or with %d bytes of data, of %d: %w", q.Op, data, q.DataBytes(), errdefs.ErrInvalid)
		}
		now = time.Now()
		a.entries = max(q.Count(), 1)
		a.arrived, a.deadline = now, now.Add(time.Duration(q.RemainingMillis)*time.Millisecond)
		if err := c.begin(a, len(body)); err != nil {
			return err
		}
		c.s.requests.Add(1)
		later, err := c.handle(a)
		if later {
			continue
		}
		if err != nil {
			c.finish(a)
			return err
		}
		c.mu.Lock()
		c.enqueue(a)
		c.mu.Unlock()
	}
}

// newAnswer returns an empty answer. It has the memory of an ended one.
func (c *conn) newAnswer() *answer {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := len(c.ended) - 1
	if n < 0 {
		return new(answer)
	}
	a := c.ended[n]
	c.ended = c.ended[:n]
	c.kept -= a.bytes()
	*a = answer{
		request: blockio.Request{Entries: a.request.Entries, Keys: a.request.Keys, IDs: a.request.IDs}, blocks: a.blocks,
		result: blockio.Result{Entries: a.result.Entries[:0], Presence: a.result.Presence[:0], Statuses: a.result.Statuses[:0]},
	}
	return a
}

// begin takes a credit and memory for a request with a body of that length. It waits until there is
// memory, or until the request is late, and for results of earlier control requests.
func (c *conn) begin(a *answer, body int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	q := &a.request
	control := blockio.Control(q.Op)
	if control && !c.wait(c.ctx, func() bool { return c.controls < int(c.limits.Credits)+controlRequests }) {
		return context.Cause(c.ctx)
	}
	switch {
	case c.progress[q.ID] != nil:
		return fmt.Errorf("request %d is in progress: %w", q.ID, errdefs.ErrInvalid)
	case control:
		c.controls++
	case c.credits == 0:
		return fmt.Errorf("request %d without a credit: %w", q.ID, errdefs.ErrInvalid)
	default:
		c.credits--
		a.result.Credits = 1
		c.s.inFlight.Add(1)
	}
	c.progress[q.ID] = a
	a.late = !control && !c.reserve(a, body)
	return nil
}

// finish ends a request, whose blocks are not accessed any more.
func (c *conn) finish(a *answer) {
	for _, b := range a.blocks {
		b.Release()
	}
	clear(a.blocks)
	a.blocks = a.blocks[:0]
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.progress, a.request.ID)
	defer c.wake()
	if blockio.Control(a.request.Op) {
		c.controls--
	} else {
		c.s.ended()
	}
	if a.work != nil && !a.work.ended { // it uses the request
		a.work.last = true
		return
	}
	c.unreserve(a)
	if n := a.bytes(); a.work == nil && c.kept+n <= keptBytes {
		c.ended, c.kept = append(c.ended, a), c.kept+n
	}
}

// send sends results until answers is closed. After an error it only ends requests.
func (c *conn) send() {
	var packer blockio.Packer
	var body []byte
	var data [][]byte
	var pending []*answer
	var err error
	for a := range c.answers {
		pending = append(pending, a)
		if err == nil {
			now := time.Now()
			data = c.prepare(a, now, data[:0])
			c.s.count(a)
			if body, err = packer.Result(body[:0], &a.result, &c.limits); err == nil {
				err = c.writing.extend(now)
			}
			if err == nil {
				c.mu.Lock() // the client may use the credit when it has the result
				c.credits += int(a.result.Credits)
				c.mu.Unlock()
				err = c.w.Append(body, data...)
			}
		}
		if err == nil && len(c.answers) == 0 {
			runtime.Gosched() // more requests may be read
		}
		if err == nil && len(c.answers) > 0 && c.w.Buffered() < flushBytes {
			continue
		}
		if err == nil {
			err = c.w.Flush()
		}
		for _, p := range pending {
			c.s.noteSlow(p, err)
			c.finish(p)
		}
		clear(pending)
		pending = pending[:0]
		if err != nil {
			_ = c.raw.Close() // it ends read, as stop ends its waits
			c.stop()
		}
	}
	for _, p := range pending {
		c.finish(p)
	}
}

// flushBytes is the number of buffered bytes at which results are sent, though more follow.
const flushBytes = 1 << 20

// laterEpoch returns the server's epoch if the hello had an earlier one, or else 0.
func (c *conn) laterEpoch() uint64 {
	if epoch := c.s.epoch(); c.epoch != 0 && c.epoch < epoch {
		return epoch
	}
	return 0
}

// prepare completes a result and appends its data.
func (c *conn) prepare(a *answer, now time.Time, data [][]byte) [][]byte {
	q, r := &a.request, &a.result
	r.Op, r.ID, r.Phase = q.Op, q.ID, q.Phase
	if q.Run != 0 {
		if n := c.s.hot.Count(q.Run, now); n > 1 {
			r.Replicas = uint32(n)
		}
	}
	if q.Op != blockio.OpStore && q.Op != blockio.OpRetrieve { // results with data have no place for it
		r.Epoch = c.laterEpoch()
	}
	c.mu.Lock()
	canceled, waits := a.canceled, a.work != nil
	c.mu.Unlock()
	if q.Op != blockio.OpRetrieve && !waits {
		return data
	}
	if canceled || waits || now.After(a.deadline) {
		status := blockio.StatusTimeout
		if canceled {
			status = blockio.StatusCanceled
		}
		*r = blockio.Result{Op: r.Op, ID: r.ID, Phase: r.Phase, Status: status, Credits: r.Credits}
		return data
	}
	return c.collect(a, data)
}
