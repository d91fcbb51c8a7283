package rpc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/rpc/chain"
	"github.com/kvlane/kvlane/rpc/internal/frame"
	"github.com/kvlane/kvlane/rpc/internal/pb"
)

// request is a request with its data.
type request struct {
	c                   *serverConn
	meta                *pb.Meta
	deadline            time.Time         // sent by the client; zero: none
	streams             []*Stream         // accepted by the handler
	fields              map[string]string // user fields of the response
	message, attachment *chain.Chain
	bytes               int64   // length of message and attachment
	failed              error   // the request was refused, or not received
	access              *access // to memory of the client; nil: none
	release             func()
	call                Call
	ctx                 callContext
	reply               metaMemory
}

// end releases the memory of a request and ends its call.
func (q *request) end() {
	q.free()
	q.c.end()
}

// free releases the memory of a request. Later calls do nothing.
func (q *request) free() {
	q.message.Release()
	q.attachment.Release()
	if q.release != nil {
		q.release()
		q.release = nil
	}
}

// run handles a request and sends its response, also if the handler ends its goroutine.
func (q *request) run() {
	defer q.c.s.group.Done()
	returned := false
	defer func() {
		if returned {
			return
		}
		if p := recover(); p != nil {
			panic(p)
		}
		q.finish(&q.call, nil, Errorf(Internal, "the handler has ended its goroutine (runtime.Goexit)"))
	}()
	call, response, err := q.handle()
	returned = true
	q.finish(call, response, err)
}

// finish ends the context of a call and sends its response.
func (q *request) finish(call *Call, response proto.Message, err error) {
	q.ctx.end()
	q.c.endAccess(q.meta.GetCorrelationId(), q.access)
	if call != nil {
		q.streams, q.fields = call.streams, call.Reply.Fields
	}
	switch {
	case call != nil && call.closeConn:
		call.Reply.Attachment.Release()
		_ = q.c.conn.Close() // the handler called CloseConnection
		q.end()
	case err != nil:
		if call != nil {
			call.Reply.Attachment.Release()
			if call.ran && call.reportExecuted && refuses(CodeOf(err)) {
				q.fields = maps.Clone(q.fields)
				if q.fields == nil {
					q.fields = make(map[string]string, 1)
				}
				q.fields[executedField] = "1"
			}
		}
		q.fail(err)
	default:
		q.succeed(call, response)
	}
}

// handle finds the method, decodes the request and runs the handler.
func (q *request) handle() (*Call, proto.Message, error) {
	s := q.c.s
	if q.failed != nil {
		return nil, nil, q.failed
	}
	if s.stopping.Load() {
		if reportsExecuted(q.meta) {
			q.c.markNotified()
		}
		return nil, nil, Errorf(LogOff, stoppingText)
	}
	if _, ok := s.calls.enter(); !ok {
		return nil, nil, Errorf(LimitReached, "Reached server's max_concurrency=%d", s.o.MaxConcurrency)
	}
	defer s.calls.leave()
	m, notFound := s.services.find(q.meta.GetRequest().GetServiceName(), q.meta.GetRequest().GetMethodName())
	if notFound != nil {
		return nil, nil, notFound
	}
	if n, ok := m.calls.enter(); !ok {
		return nil, nil, Errorf(LimitReached, "Rejected by %s.%s's ConcurrencyLimiter, concurrency=%d", m.service, m.Name, n)
	}
	defer m.calls.leave()
	in, err := q.decode(m)
	if err != nil {
		return nil, nil, err
	}
	call := &q.call
	*call = newCall(m, q.c, q.meta, q.attachment)
	call.access = q.access
	q.ctx.begin(q.c.ctx, q.deadline, call)
	h := m.Handle
	if call.ran = len(s.o.Interceptors) == 0; !call.ran {
		h = func(ctx context.Context, in proto.Message) (proto.Message, error) {
			call.ran = true
			return m.Handle(ctx, in)
		}
	}
	response, err := s.intercept(h)(&q.ctx, in)
	return call, response, err
}

// decode checks the checksum and returns the request's message.
func (q *request) decode(m *method) (proto.Message, error) {
	size := int64(q.meta.GetAttachmentSize())
	if size < 0 {
		return nil, Errorf(BadRequest, "attachment_size=%d is negative", size)
	}
	if size > q.bytes {
		return nil, Errorf(BadRequest, "attachment_size=%d is larger than request_size=%d", size, q.bytes)
	}
	in := m.NewRequest()
	message, err := q.message.Contiguous()
	if err == nil {
		err = verify(q.meta, message, q.attachment)
	}
	content, compression := Content(q.meta.GetContentType()), Compression(q.meta.GetCompressType())
	if err == nil {
		decoded, ok := q.reserve(len(message), compression)
		if !ok {
			return nil, Errorf(Overcrowded, "the server has no memory to decompress the request")
		}
		err = decode(message, in, content, compression, q.c.s.o.MaxBodyBytes)
		if enough := decoded(in); err == nil && !enough {
			return nil, Errorf(Overcrowded, "the server has no memory for the decompressed request")
		}
	}
	if err != nil {
		sum := "none"
		if q.meta.GetChecksumType() != 0 {
			sum = "crc32c"
		}
		return nil, &Error{BadRequest, fmt.Sprintf("Fail to parse request=%s, ContentType=%s, CompressType=%s, ChecksumType=%s, request_size=%d",
			in.ProtoReflect().Descriptor().FullName(), content, compression, sum, len(message)), err}
	}
	return in, nil
}

// maxExpansion is the largest ratio of decompressed and compressed bytes, that of deflate.
const maxExpansion = 1032

// reserve reserves memory to decompress a message of n bytes. decoded then replaces it by that of the
// message, until the request is freed. Both report whether there is enough.
func (q *request) reserve(n int, c Compression) (decoded func(proto.Message) bool, ok bool) {
	if c == NoCompression {
		return func(proto.Message) bool { return true }, true
	}
	s := q.c.s
	most := min(maxExpansion*int64(n), s.o.MaxBodyBytes, s.o.MemoryBytes)
	free, ok := s.budget.TryTake(most)
	return func(m proto.Message) bool {
		free()
		release, ok := s.budget.TryTake(min(int64(proto.Size(m)), s.o.MemoryBytes))
		if !ok {
			return false
		}
		if compressed := q.release; compressed != nil {
			q.release = func() { compressed(); release() }
		} else {
			q.release = release
		}
		return true
	}, ok
}

// verify compares the checksum of a received message. Unknown types are refused.
func verify(meta *pb.Meta, message []byte, attachment *chain.Chain) error {
	switch t := meta.GetChecksumType(); t {
	case 0:
		return nil
	case checksumCRC32C:
		sum, err := checksum(message, attachment, meta.GetChecksumWithAttachment())
		if err != nil {
			return err
		}
		if !bytes.Equal(sum, meta.GetChecksumValue()) {
			return fmt.Errorf("checksum %x, not %x: %w", sum, meta.GetChecksumValue(), errdefs.ErrCorrupt)
		}
		return nil
	default:
		return fmt.Errorf("checksum type %d: %w", t, errdefs.ErrInvalid)
	}
}

// succeed sends the response of a handler.
func (q *request) succeed(call *Call, response proto.Message) {
	r := &call.Reply
	message, err := q.encode(response, r)
	if err != nil {
		r.Attachment.Release()
		q.fail(err)
		return
	}
	meta := q.responseMeta(OK)
	*meta.CompressType, *meta.ContentType = int32(r.Compression), int32(r.Content)
	if r.Attachment.Len() > 0 {
		meta.AttachmentSize = proto.Int32(int32(r.Attachment.Len()))
	}
	if r.Checksum != NoChecksum {
		sum, err := r.Checksum.of(message.bytes, r.Attachment)
		if err != nil {
			message.release()
			r.Attachment.Release()
			q.fail(&Error{BadResponse, "the response has no checksum", err})
			return
		}
		meta.ChecksumType, meta.ChecksumValue = proto.Int32(checksumCRC32C), sum
		if r.Checksum == CRC32CAll {
			meta.ChecksumWithAttachment = proto.Bool(true)
		}
	}
	q.send(meta, message, r.Attachment)
}

// encode encodes the message of a response.
func (q *request) encode(m proto.Message, r *Reply) (payload, error) {
	if m == nil {
		return payload{}, Errorf(BadResponse, "the handler returned no response")
	}
	if err := proto.CheckInitialized(m); err != nil {
		return payload{}, &Error{BadResponse, "Missing required fields in response: " + err.Error(), nil}
	}
	message, err := encode(m, r.Content, r.Compression)
	if err != nil {
		return payload{}, &Error{BadResponse, "the response does not encode", err}
	}
	if n := int64(len(message.bytes)) + r.Attachment.Len(); n > maxFrameData {
		message.release()
		return payload{}, Errorf(BadResponse, "a response of %d bytes with its attachment, of at most %d", n, int64(maxFrameData))
	}
	return message, nil
}

// responseMeta returns the meta of a response. It has the fields that brpc sends, also if they are
// zero: a response without a checksum repeats the checksum of the request.
func (q *request) responseMeta(code Code) *pb.Meta {
	sum := q.meta.GetChecksumValue()
	if sum == nil {
		sum = []byte{}
	}
	q.reply = metaMemory{}
	r := &q.reply
	r.response.ErrorCode = r.number(int32(code))
	m := &r.meta
	m.Response, m.CorrelationId, m.ChecksumValue, m.UserFields = &r.response, r.id(q.meta.GetCorrelationId()), sum, q.fields
	m.CompressType, m.ContentType, m.ChecksumType = r.number(0), r.number(0), r.number(0)
	return m
}

// maxErrorText is the length in bytes to which the text of an error is cut.
const maxErrorText = 64 << 10

// refuses reports whether servers refuse calls with this code.
func refuses(c Code) bool { return c == LogOff || c == LimitReached || c == Overcrowded }

// fail sends an error: "[ADDRESS][E<code>]text", or without the code for errors that have none.
func (q *request) fail(err error) {
	s := q.c.s
	code, text := Internal, err.Error()
	if e := (*Error)(nil); errors.As(err, &e) {
		if code = e.Code; code == OK { // an error must not have the code of success
			code = Internal
		}
		text = fmt.Sprintf("[E%d]%s", code, e.Text)
	}
	s.failed.Add(1)
	if refuses(code) {
		s.rejected.Add(1)
	}
	if len(text) > maxErrorText {
		text = strings.ToValidUTF8(text[:maxErrorText], "") + " (shortened)"
	}
	meta := q.responseMeta(code)
	meta.Response.ErrorText = proto.String(fmt.Sprintf("[%s]%s", q.c.conn.LocalAddr(), text))
	q.free() // the client may not read the response soon
	q.send(meta, payload{}, nil)
}

// send writes a response and ends the request after that. It takes over the
// message and the attachment.
func (q *request) send(meta *pb.Meta, message payload, attachment *chain.Chain) {
	if len(q.streams) > 0 {
		meta.StreamSettings = settings(q.streams)
	}
	o, err := newOutput(q.c.out.transport, frame.Message, meta, message.bytes, attachment)
	o.block = message.block
	wanted := q.meta.GetStreamSettings()
	if err == nil && wanted != nil {
		o, err = q.inStream(o, wanted)
	}
	if err != nil { // the attachment cannot be sent
		attachment.Release()
		message.release()
		q.fail(&Error{BadResponse, err.Error(), err})
		return
	}
	o.sent = q.end
	if code := meta.GetResponse().GetErrorCode(); code != 0 {
		err = q.c.out.write(o)
	} else {
		err = q.writeWait(o)
	}
	for i, s := range q.streams {
		if err == nil && meta.GetResponse().GetErrorCode() == 0 {
			s.opened(streamIDs(wanted)[i], wanted)
		} else {
			s.end(&Error{Closed, "the call failed", err})
		}
	}
}

// writeWait writes a response when there is space. It drops it at the call's deadline. Its other
// errors end the connection, which the reader notices.
func (q *request) writeWait(o output) error {
	ctx := q.c.s.ctx
	if !q.deadline.IsZero() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, q.deadline)
		defer cancel()
	}
	return q.c.out.writeWait(ctx, o, false)
}

// inStream puts a response into a frame of the stream that the client requests.
func (q *request) inStream(o output, wanted *pb.StreamSettings) (output, error) {
	kind, from := int32(frameData), int64(-1)
	if len(q.streams) > 0 {
		from = q.streams[0].id
	}
	outer, err := newOutput(nil, frame.Stream, &pb.StreamFrame{StreamId: wanted.StreamId, SourceStreamId: &from, FrameType: &kind, HasContinuation: proto.Bool(false)}, nil, nil)
	if err != nil {
		return o, err
	}
	h, err := frame.Parse(outer.head)
	if err != nil {
		return o, err
	}
	h.Body += o.bytes
	if err := h.Put(outer.head); err != nil {
		return o, err
	}
	o.head, o.bytes = append(outer.head, o.head...), o.bytes+outer.bytes
	return o, nil
}
