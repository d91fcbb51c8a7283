package rpc

import (
	"errors"
	"fmt"
	"maps"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/rpc/chain"
	"github.com/kvlane/kvlane/rpc/internal/pb"
)

// ErrNotSent is returned for a call that failed before its request was written to a connection, so
// that it is safe to repeat the call. It wraps the cause.
var ErrNotSent = errors.New("the request was not sent")

// executedField is the user field of a request that asks for Executed, and of a response that reports
// it.
const executedField = "kvlane-executed"

// reportsExecuted reports whether a request has ReportExecuted, or whether a response is that of a
// handler.
func reportsExecuted(meta *pb.Meta) bool {
	_, ok := meta.GetUserFields()[executedField]
	return ok
}

// notSent adds ErrNotSent to an error.
func notSent(err error) error {
	e := (*Error)(nil)
	switch {
	case !errors.As(err, &e):
		return fmt.Errorf("%w: %w", ErrNotSent, err)
	case e.Cause == nil:
		return &Error{e.Code, e.Text, ErrNotSent}
	}
	return &Error{e.Code, e.Text, fmt.Errorf("%w: %w", ErrNotSent, e.Cause)}
}

// Request is an encoded request. It may be sent several times, to several servers, also at the same
// time.
type Request struct {
	service, method string
	message         payload
	checksum        []byte // nil: none
	o               callOptions
}

// NewRequest encodes a request of a method, named SERVICE/METHOD. It empties the chain of the
// attachment also if it fails. The caller releases the request. All errors are an *Error.
func NewRequest(method string, in proto.Message, options ...CallOption) (*Request, error) {
	r := new(Request)
	for _, set := range options {
		set(&r.o)
	}
	r.o.fields = maps.Clone(r.o.fields)
	if r.o.reportExecuted {
		if r.o.fields == nil {
			r.o.fields = make(map[string]string, 1)
		}
		r.o.fields[executedField] = ""
	}
	if given := r.o.attachment; given.Len() > 0 {
		r.o.attachment = new(chain.Chain)
		r.o.attachment.Append(given)
	}
	if err := r.encode(method, in); err != nil {
		r.Release()
		return nil, err
	}
	return r, nil
}

func (r *Request) encode(method string, in proto.Message) error {
	var ok bool
	if r.service, r.method, ok = strings.Cut(method, "/"); !ok || r.service == "" || r.method == "" {
		return &Error{BadRequest, fmt.Sprintf("method %q is not SERVICE/METHOD", method), errdefs.ErrInvalid}
	}
	if in == nil {
		return &Error{BadRequest, "the request is nil", errdefs.ErrInvalid}
	}
	var err error
	if r.message, err = encode(in, r.o.content, r.o.compression); err != nil {
		return &Error{BadRequest, "the request does not encode", err}
	}
	if n := int64(len(r.message.bytes)) + r.o.attachment.Len(); n > maxFrameData {
		return Errorf(BadRequest, "a request of %d bytes with its attachment, of at most %d", n, int64(maxFrameData))
	}
	if r.o.checksum != NoChecksum {
		if r.checksum, err = r.o.checksum.of(r.message.bytes, r.o.attachment); err != nil {
			return &Error{BadRequest, "the request has no checksum", err}
		}
	}
	return nil
}

// checkResponse returns an error for a message that no response can be decoded into.
func checkResponse(out proto.Message) error {
	if out == nil || !out.ProtoReflect().IsValid() {
		return &Error{BadRequest, "the message for the response is nil", errdefs.ErrInvalid}
	}
	return nil
}

// Release releases the attachment. Calls of Do must have returned. A nil request may be released.
func (r *Request) Release() {
	if r != nil {
		r.message.release()
		r.o.attachment.Release()
	}
}

// Response is a received response that is not decoded yet.
type Response struct {
	p     *pendingCall
	r     *Request
	limit int64 // bytes after decompression
}

// Err returns the error that the server has sent, an *Error, or nil.
func (a Response) Err() error {
	if r := a.p.meta.GetResponse(); r.GetErrorCode() != 0 {
		return &Error{Code: Code(r.GetErrorCode()), Text: r.GetErrorText()}
	}
	return nil
}

// Executed reports whether a handler has returned the error LogOff, LimitReached or Overcrowded.
// Servers also refuse calls with these codes, before they run a handler. Only servers of this
// package tell the two apart, for requests with ReportExecuted.
func (a Response) Executed() bool { return reportsExecuted(a.p.meta) }

// Decode decodes the response into out, and stores the attachment and fields that the options of
// the request name. It returns Err, or BadResponse for a response that does not decode. It releases
// the response.
func (a Response) Decode(out proto.Message) error {
	p, o := a.p, &a.r.o
	defer p.release()
	if err := checkResponse(out); err != nil {
		return err
	}
	if o.gotFields != nil {
		*o.gotFields = p.meta.GetUserFields()
		delete(*o.gotFields, executedField)
	}
	if err := a.Err(); err != nil {
		return err
	}
	message, err := p.message.Contiguous()
	if err == nil {
		err = verify(p.meta, message, p.attachment)
	}
	if err == nil {
		err = decode(message, out, Content(p.meta.GetContentType()), Compression(p.meta.GetCompressType()), a.limit)
	}
	if err != nil {
		return &Error{BadResponse, "the response does not decode", err}
	}
	if len(o.streams) > 0 {
		if err := p.accept(o.streams); err != nil {
			return err
		}
	}
	if o.gotAttachment != nil {
		o.gotAttachment.Append(p.attachment)
	}
	return nil
}

// Release drops the response.
func (a Response) Release() { a.p.release() }
