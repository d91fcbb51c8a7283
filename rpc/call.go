package rpc

import (
	"context"
	"crypto/tls"
	"net"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/rpc/chain"
	"github.com/kvlane/kvlane/rpc/internal/pb"
)

// Call is one call on the server. Only its handler may use it, until it returns.
type Call struct {
	// Service and Method are the full name of the service and the name of the method.
	Service, Method string
	// Remote is the address of the client.
	Remote net.Addr
	// Identity is the result of ServerOptions.Authenticate for the connection.
	Identity any
	// Attachment has the bytes that follow the request's message. It is released after the handler
	// returns. A handler that keeps bytes must take them with Cut or Slice.
	Attachment *chain.Chain
	// Fields are the user fields of the request.
	Fields map[string]string
	// RequestID, LogID, TraceID, SpanID and ParentSpanID are those of the request, or zero.
	RequestID                            string
	LogID, TraceID, SpanID, ParentSpanID int64

	// Reply has the options of the response, set by the handler.
	Reply Reply

	closeConn bool
	ran       bool // the handler was called

	reportExecuted bool    // the client asks for Response.Executed
	access         *access // to memory of the client; nil: none
	table          *streamTable
	wanted         *pb.StreamSettings // nil: the client requests no stream
	streams        []*Stream
}

// Reply has the options of a response.
type Reply struct {
	// Attachment is sent after the response's message. The server releases it.
	Attachment *chain.Chain
	// Fields are the user fields of the response, also of an error.
	Fields map[string]string
	// Compression, Content and Checksum are those of the response.
	Compression Compression
	Content     Content
	Checksum    Checksum
}

// CloseConnection makes the server close the connection instead of sending a response.
func (c *Call) CloseConnection() { c.closeConn = true }

// WantsStreams reports whether the client requests streams.
func (c *Call) WantsStreams() bool { return c.wanted != nil }

// AcceptStreams accepts the streams that the client requests. They carry messages after the handler
// has returned a response, and end if the handler fails. They outlive its context. AcceptStreams
// returns an *Error if the client requests no streams or too many, and if it is called twice.
func (c *Call) AcceptStreams(o StreamOptions) ([]*Stream, error) {
	if err := o.setDefaults(); err != nil {
		return nil, err
	}
	if c.wanted == nil || c.streams != nil {
		return nil, &Error{BadRequest, "the call has no stream to accept", errdefs.ErrInvalid}
	}
	for range streamIDs(c.wanted) {
		s, err := c.table.open(o)
		if err != nil {
			for _, s := range c.streams {
				s.end(err)
			}
			c.streams = nil
			return nil, err
		}
		c.streams = append(c.streams, s)
	}
	return c.streams, nil
}

type callKey struct{}

// FromContext returns the call of a handler's context, or nil for other contexts.
func FromContext(ctx context.Context) *Call {
	c, _ := ctx.Value(callKey{}).(*Call)
	return c
}

type connKey struct{}

// TLSState returns the state of the TLS connection of a context that a handler or
// ServerOptions.Authenticate has received, or nil if the connection is plain.
func TLSState(ctx context.Context) *tls.ConnectionState {
	c, ok := ctx.Value(connKey{}).(*tls.Conn)
	if !ok {
		return nil
	}
	state := c.ConnectionState()
	return &state
}

// newCall returns the call of a request.
func newCall(m *method, c *serverConn, meta *pb.Meta, attachment *chain.Chain) Call {
	r := meta.GetRequest()
	_, report := meta.GetUserFields()[executedField]
	delete(meta.GetUserFields(), executedField)
	return Call{
		reportExecuted: report,
		Service:        m.service, Method: m.Name, Remote: c.conn.RemoteAddr(), Identity: c.identity, Attachment: attachment,
		Fields: meta.GetUserFields(), RequestID: r.GetRequestId(), LogID: r.GetLogId(),
		table: c.streams, wanted: meta.GetStreamSettings(),
		TraceID: r.GetTraceId(), SpanID: r.GetSpanId(), ParentSpanID: r.GetParentSpanId(),
	}
}
