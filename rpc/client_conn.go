package rpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/rpc/chain"
	"github.com/kvlane/kvlane/rpc/internal/frame"
	"github.com/kvlane/kvlane/rpc/internal/pb"
)

// clientConn is a connection to a server.
type clientConn struct {
	c    *Client
	conn net.Conn
	out  *writer

	streams *streamTable

	introduced atomic.Bool // the request with the credential is queued
	first      sync.Mutex  // held for the first request

	mu        sync.Mutex
	pending   map[int64]*pendingCall // by correlation id
	receiving bool                   // a response is being received; its call is no longer pending
	leaving   bool                   // the server shuts down: no more calls begin
	err       error
}

// errLeaving is the error of calls that would begin on a connection that is leaving.
var errLeaving = &Error{Code: LogOff, Text: "the server is shutting down"}

// pendingCall is a call that waits for its response.
type pendingCall struct {
	id      int64
	request metaMemory
	offered *offered      // nil: the server accesses no memory
	done    chan struct{} // capacity 1; a value when the fields below are set

	meta                *pb.Meta
	message, attachment *chain.Chain
	err                 error
}

func newClientConn(c *Client, conn net.Conn) *clientConn {
	out := newWriter(conn, c.o.Stall, c.o.MaxUnsentBytes)
	return &clientConn{c: c, conn: conn, out: out, streams: newStreamTable(out, c.o.MaxBodyBytes), pending: make(map[int64]*pendingCall)}
}

// usable reports whether calls may begin on the connection.
func (c *clientConn) usable() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err == nil && !c.leaving
}

// close fails all calls of the connection with err.
func (c *clientConn) close(err error) {
	c.mu.Lock()
	if c.err == nil {
		c.err = err
	}
	pending := c.pending
	c.pending = nil
	c.mu.Unlock()
	c.out.close(err)
	c.streams.close(callError(context.Background(), err))
	for _, p := range pending {
		p.err = err
		p.done <- struct{}{}
	}
}

// start sends a request. On success the caller calls await.
func (c *clientConn) start(ctx context.Context, r *Request) (*pendingCall, error) {
	p := &pendingCall{id: c.c.lastID.Add(1), done: make(chan struct{}, 1)}
	o := &r.o
	m := &p.request
	meta := &m.meta
	m.request.ServiceName, m.request.MethodName = &r.service, &r.method
	meta.Request, meta.CorrelationId, meta.UserFields = &m.request, &p.id, o.fields
	meta.CompressType, meta.ContentType = m.number(int32(o.compression)), m.number(int32(o.content))
	if len(o.streams) > 0 {
		meta.StreamSettings = settings(o.streams)
	}
	setRequest(ctx, m, o)
	if n := o.attachment.Len(); n > 0 {
		meta.AttachmentSize = m.number(int32(n))
	}
	if r.checksum != nil {
		meta.ChecksumType, meta.ChecksumValue = proto.Int32(checksumCRC32C), r.checksum
		if o.checksum == CRC32CAll {
			meta.ChecksumWithAttachment = proto.Bool(true)
		}
	}
	var err error
	if p.offered, err = c.offer(o, meta); err != nil {
		return nil, err
	}
	if err := c.register(p, true); err != nil {
		return nil, c.settle(p, notSent(err))
	}
	if err := c.send(ctx, meta, &r.message, o.attachment); err != nil {
		c.withdraw(p)
		return nil, c.settle(p, err)
	}
	return p, nil
}

// setRequest sets the optional fields of a request.
func setRequest(ctx context.Context, m *metaMemory, o *callOptions) {
	r := &m.request
	set := func(field **int64, v int64) {
		if v != 0 {
			*field = m.id(v)
		}
	}
	set(&r.LogId, o.logID)
	set(&r.TraceId, o.traceID)
	set(&r.SpanId, o.spanID)
	set(&r.ParentSpanId, o.parentSpanID)
	if o.requestID != "" {
		r.RequestId = &o.requestID
	}
	if end, ok := ctx.Deadline(); ok && o.sendTimeout {
		r.TimeoutMs = m.number(int32(min(max(time.Until(end).Milliseconds(), 1), 1<<31-1)))
	}
}

// register adds a pending call, or a fence. No calls are added while the connection is leaving.
func (c *clientConn) register(p *pendingCall, call bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.err != nil:
		return c.err
	case c.leaving && call:
		return errLeaving
	}
	c.pending[p.id] = p
	return nil
}

// withdraw removes a pending call. It releases a response that has arrived before.
func (c *clientConn) withdraw(p *pendingCall) {
	c.mu.Lock()
	_, waits := c.pending[p.id]
	delete(c.pending, p.id)
	c.mu.Unlock()
	if !waits {
		<-p.done
		p.release()
	}
	c.closeUnused()
}

// claim removes and returns the pending call of a response, or nil if it has ended. The connection
// is leaving after a response of a server that shuts down. Without ReportExecuted the response may
// be that of a handler.
func (c *clientConn) claim(meta *pb.Meta) *pendingCall {
	id := meta.GetCorrelationId()
	c.mu.Lock()
	p := c.pending[id]
	delete(c.pending, id)
	leaving := Code(meta.GetResponse().GetErrorCode()) == LogOff && !reportsExecuted(meta) &&
		(id == noticeID || p != nil && reportsExecuted(&p.request.meta))
	c.leaving = c.leaving || leaving
	c.receiving = true
	c.mu.Unlock()
	if leaving {
		c.c.retire(c)
	}
	return p
}

// received ends the reception of a response.
func (c *clientConn) received() {
	c.mu.Lock()
	c.receiving = false
	c.mu.Unlock()
	c.closeUnused()
}

// closeUnused closes a connection that is leaving, unless calls or streams are in progress. The
// server waits for this.
func (c *clientConn) closeUnused() {
	c.mu.Lock()
	unused := c.leaving && !c.receiving && len(c.pending) == 0
	c.mu.Unlock()
	if unused && !c.streams.used() {
		c.close(errLeaving)
	}
}

// send queues a request, when there is space. The first one of the connection has the credential.
// The caller still owns the message and the attachment.
func (c *clientConn) send(ctx context.Context, meta *pb.Meta, message *payload, attachment *chain.Chain) error {
	introduces := false
	if len(c.c.o.Credential) > 0 && !c.introduced.Load() {
		c.first.Lock()
		defer c.first.Unlock()
		if introduces = !c.introduced.Load(); introduces {
			meta.AuthenticationData = c.c.o.Credential
		}
	}
	copied, err := attachment.Slice(0, attachment.Len())
	if err != nil {
		return err
	}
	o, err := newOutput(c.out.transport, frame.Message, meta, message.bytes, copied)
	if err != nil {
		copied.Release()
		return &Error{BadRequest, "the attachment cannot be sent", err}
	}
	if err := c.c.checkSize(o.head); err != nil {
		copied.Release()
		return err
	}
	if o.message != nil && message.block != nil {
		message.block.Retain()
		o.block = message.block
	}
	if err := c.out.admit(ctx, o.bytes, true); err != nil {
		o.drop()
		return notSent(err)
	}
	o.admitted = true
	if introduces {
		defer c.introduced.Store(true) // after the frame is queued
	}
	return c.out.write(o)
}

// checkSize returns BadRequest for a frame over the limits of the client. A server with these limits
// closes the connection, and the other calls on it fail.
func (c *Client) checkSize(head []byte) error {
	h, err := frame.Parse(head)
	switch {
	case err != nil:
		return err
	case h.Body > c.o.MaxBodyBytes:
		return Errorf(BadRequest, "a request of %d bytes with its meta and attachment exceeds ClientOptions.MaxBodyBytes of %d", h.Body, c.o.MaxBodyBytes)
	case h.Meta > c.o.MaxMetaBytes:
		return Errorf(BadRequest, "a request with a meta of %d bytes, which has the user fields, exceeds ClientOptions.MaxMetaBytes of %d", h.Meta, c.o.MaxMetaBytes)
	}
	return nil
}

// await waits for the response or the end of ctx.
func (c *clientConn) await(ctx context.Context, p *pendingCall) error {
	select {
	case <-p.done:
		return p.err
	case <-ctx.Done():
		c.withdraw(p)
		return context.Cause(ctx)
	}
}

// run reads responses until the connection ends.
func (c *clientConn) run() {
	defer c.c.group.Done()
	err := c.read()
	if failed := c.out.failure(); failed != nil && errors.Is(err, net.ErrClosed) {
		err = failed // it has closed the connection
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = &Error{EndOfFile, "the server closed the connection", err}
	}
	if errors.Is(err, errdefs.ErrNoSpace) {
		err = fmt.Errorf("a response exceeds ClientOptions.MaxBodyBytes or MaxMetaBytes: %w", err)
	}
	c.close(err)
	c.c.forget(c) // so that calls connect again, while the NIC may access memory of this connection
	if t := c.out.transport; t != nil {
		t.close(err)
	}
}

func (c *clientConn) read() error {
	in := newSource(c.conn, c.out.transport, frame.Limits{Body: c.c.o.MaxBodyBytes, Meta: c.c.o.MaxMetaBytes, Stall: c.c.o.Stall})
	return readFrames(in, c.streams, c.response)
}

// response delivers a response to its call, or drops it if the call has ended.
func (c *clientConn) response(in frameSource, meta *pb.Meta, _ int64) error {
	p := c.claim(meta)
	defer c.received()
	if p == nil {
		return in.Skip()
	}
	var err error
	p.meta = meta
	size := int64(meta.GetAttachmentSize())
	if size < 0 || size > in.Left() {
		p.err = Errorf(BadResponse, "a response of %d bytes with attachment_size=%d", in.Left(), size)
		err = in.Skip()
	} else if p.message, err = in.ReadHost(in.Left() - size); err == nil {
		p.attachment, err = in.ReadChain(size)
	}
	if code := receiveCode(err); code != OK {
		p.err = &Error{code, "the response could not be received", err}
		err = in.Skip()
	}
	if err != nil {
		p.message.Release() // the attachment did not arrive
		p.err = err
		if errors.Is(err, io.ErrUnexpectedEOF) {
			p.err = &Error{EndOfFile, "the server closed the connection", err}
		}
	}
	p.done <- struct{}{}
	return err
}

// respondInStream delivers a response that arrived as the first message of a stream.
func (c *clientConn) respondInStream(data *chain.Chain) error {
	head := make([]byte, frame.HeaderBytes)
	if n, err := data.CopyTo(head, 0); err != nil || n < len(head) {
		data.Release()
		return fmt.Errorf("decode the response of a stream: %d bytes: %w", n, errdefs.ErrInvalid)
	}
	h, err := frame.Parse(head)
	if err == nil && (h.Kind != frame.Message || frame.HeaderBytes+h.Body != data.Len() || h.Meta > c.c.o.MaxMetaBytes) {
		err = fmt.Errorf("decode the response of a stream: %w", errdefs.ErrInvalid)
	}
	if err != nil {
		data.Release()
		return err
	}
	data.Cut(frame.HeaderBytes).Release()
	encoded := data.Cut(h.Meta)
	b, err := encoded.Contiguous()
	var meta *pb.Meta
	if err == nil {
		meta, err = decodeMeta(b)
	}
	encoded.Release()
	if err != nil {
		data.Release()
		return fmt.Errorf("decode the meta of a response: %w: %w", errdefs.ErrInvalid, err)
	}
	p := c.claim(meta)
	defer c.received()
	if p == nil { // the call has ended
		data.Release()
		return nil
	}
	p.meta = meta
	if size := int64(meta.GetAttachmentSize()); size < 0 || size > data.Len() {
		p.err = Errorf(BadResponse, "a response of %d bytes with attachment_size=%d", data.Len(), size)
		data.Release()
	} else {
		p.message, p.attachment = data.Cut(data.Len()-size), data
	}
	p.done <- struct{}{}
	return nil
}

func (p *pendingCall) release() {
	p.message.Release()
	p.attachment.Release()
}
