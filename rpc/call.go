package rpc

import (
	"context"
	"net"

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
	// Attachment has the bytes behind the request. It is released after the handler returns: a
	// handler that keeps bytes takes them with Cut or Slice.
	Attachment *chain.Chain
	// Fields are the user fields of the request.
	Fields map[string]string
	// RequestID, LogID, TraceID, SpanID and ParentSpanID are those of the request, or zero.
	RequestID                            string
	LogID, TraceID, SpanID, ParentSpanID int64

	// Reply has the options of the response, set by the handler.
	Reply Reply

	closeConn bool
}

// Reply has the options of a response.
type Reply struct {
	// Attachment is sent behind the response. The server takes it over.
	Attachment *chain.Chain
	// Fields are the user fields of the response.
	Fields map[string]string
	// Compression, Content and Checksum are those of the response.
	Compression Compression
	Content     Content
	Checksum    Checksum
}

// CloseConnection makes the server close the connection instead of sending a response.
func (c *Call) CloseConnection() { c.closeConn = true }

type callKey struct{}

// FromContext returns the call of a handler's context, or nil for other contexts.
func FromContext(ctx context.Context) *Call {
	c, _ := ctx.Value(callKey{}).(*Call)
	return c
}

// newCall returns the call of a request.
func newCall(m *method, c *serverConn, meta *pb.Meta, attachment *chain.Chain) *Call {
	r := meta.GetRequest()
	return &Call{
		Service: m.service, Method: m.Name, Remote: c.conn.RemoteAddr(), Identity: c.identity, Attachment: attachment,
		Fields: meta.GetUserFields(), RequestID: r.GetRequestId(), LogID: r.GetLogId(),
		TraceID: r.GetTraceId(), SpanID: r.GetSpanId(), ParentSpanID: r.GetParentSpanId(),
	}
}
