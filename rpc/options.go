package rpc

import "github.com/kvlane/kvlane/rpc/chain"

// CallOption changes one call of a client.
type CallOption func(*callOptions)

type callOptions struct {
	attachment                           *chain.Chain
	reportExecuted                       bool
	fields                               map[string]string
	compression                          Compression
	content                              Content
	checksum                             Checksum
	requestID                            string
	logID, traceID, spanID, parentSpanID int64
	sendTimeout                          bool
	gotAttachment                        *chain.Chain
	gotFields                            *map[string]string
	streams                              []*Stream
	source, destination                  *Memory
}

// WithAttachment sends bytes after the request's message. The call empties the chain, also if it
// fails.
func WithAttachment(c *chain.Chain) CallOption { return func(o *callOptions) { o.attachment = c } }

// ReceiveAttachment appends the attachment of the response to c. Without it the attachment is
// dropped. The caller releases c.
func ReceiveAttachment(c *chain.Chain) CallOption {
	return func(o *callOptions) { o.gotAttachment = c }
}

// ReportExecuted asks the server for Response.Executed, by a user field. A server of this package
// then also notifies the client of its shutdown. After that, or after a response with LogOff that
// is not Executed, no call begins on the connection. Later calls make a new one. Calls that have
// chosen the old one fail with LogOff and ErrNotSent.
func ReportExecuted() CallOption {
	return func(o *callOptions) { o.reportExecuted = true }
}

// WithFields sends user fields.
func WithFields(fields map[string]string) CallOption {
	return func(o *callOptions) { o.fields = fields }
}

// ReceiveFields stores the user fields of the response in m.
func ReceiveFields(m *map[string]string) CallOption { return func(o *callOptions) { o.gotFields = m } }

// WithCompression compresses the request.
func WithCompression(c Compression) CallOption { return func(o *callOptions) { o.compression = c } }

// WithContent selects the encoding of the request. Default: Protobuf.
func WithContent(c Content) CallOption { return func(o *callOptions) { o.content = c } }

// WithChecksum adds a checksum to the request.
func WithChecksum(c Checksum) CallOption { return func(o *callOptions) { o.checksum = c } }

// WithRequestID sends an identifier of the request.
func WithRequestID(id string) CallOption { return func(o *callOptions) { o.requestID = id } }

// WithLogID sends a log identifier.
func WithLogID(id int64) CallOption { return func(o *callOptions) { o.logID = id } }

// WithTrace sends the identifiers of a trace and its spans.
func WithTrace(trace, span, parent int64) CallOption {
	return func(o *callOptions) { o.traceID, o.spanID, o.parentSpanID = trace, span, parent }
}

// SendTimeout sends the time until the context's deadline, so that the server can apply it too.
func SendTimeout() CallOption { return func(o *callOptions) { o.sendTimeout = true } }

// Headers are the fields and identifiers of a request.
type Headers struct {
	Fields                               map[string]string
	RequestID                            string
	LogID, TraceID, SpanID, ParentSpanID int64
}

// HeadersOf returns the headers that options set. A Caller that wraps another one reads them. The
// fields are those of WithFields, not a copy.
func HeadersOf(options ...CallOption) Headers {
	var o callOptions
	for _, set := range options {
		set(&o)
	}
	return Headers{o.fields, o.requestID, o.logID, o.traceID, o.spanID, o.parentSpanID}
}
