// Package otelrpc makes OpenTelemetry spans of the calls of package rpc, for clients and servers:
//
//	stub := echo.NewEchoServiceStub(otelrpc.NewCaller(client, otelrpc.Options{}))
//	interceptors := []rpc.Interceptor{otelrpc.NewInterceptor(otelrpc.Options{})}
//	server, err := rpc.NewServer(rpc.ServerOptions{Interceptors: interceptors})
//
// The name of a span is SERVICE/METHOD. Its attributes are rpc.system, rpc.service, rpc.method,
// network.peer.address on servers, and those of the request and response:
//
//	rpc.baidu_std.log_id      log_id, if it is set
//	rpc.baidu_std.trace_id    trace_id in hexadecimal digits, as the pages of brpc show it
//	rpc.baidu_std.error_code  the code of a failed call; the status of the span has its text
//
// # Traces
//
// A request has the trace twice. The user field traceparent has it whole (W3C Trace Context). For
// brpc, trace_id has the last 8 bytes of the trace's id, span_id the id of the client's span, and
// parent_span_id the id of that span's parent; big-endian, as brpc fills them. brpc makes a span of
// each request with a trace_id, so that only sampled spans are sent in this way.
//
// A server takes the parent of its span from traceparent. Without it, the parent is the span_id of
// a request with a trace_id: the id of its trace then begins with 8 zero bytes, and it is sampled.
package otelrpc

import (
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"strings"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/protobuf/proto"

	"github.com/kvlane/kvlane/rpc"
)

// Options are the options of a caller or interceptor.
type Options struct {
	// Provider makes the tracer. nil: the program's global provider.
	Provider trace.TracerProvider
	// Propagator writes and reads the user fields of a trace. nil: propagation.TraceContext.
	Propagator propagation.TextMapPropagator
}

func (o *Options) setDefaults() {
	if o.Provider == nil {
		o.Provider = otel.GetTracerProvider()
	}
	if o.Propagator == nil {
		o.Propagator = propagation.TraceContext{}
	}
}

func (o *Options) tracer() trace.Tracer {
	return o.Provider.Tracer("github.com/kvlane/kvlane/rpc/otelrpc")
}

// caller makes a span of each call.
type caller struct {
	next       rpc.Caller
	tracer     trace.Tracer
	propagator propagation.TextMapPropagator
}

// NewCaller returns a caller that calls through next, and makes a span of each call. The span's
// trace replaces the options of rpc.WithTrace. A call with retries has one span. Client.OpenStreams
// does not pass through a caller, and has none.
func NewCaller(next rpc.Caller, o Options) rpc.Caller {
	o.setDefaults()
	return &caller{next, o.tracer(), o.Propagator}
}

// Call calls a method within a span.
func (c *caller) Call(ctx context.Context, method string, in, out proto.Message, options ...rpc.CallOption) error {
	headers := rpc.HeadersOf(options...)
	parent := trace.SpanContextFromContext(ctx)
	ctx, span := c.tracer.Start(ctx, method, trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(attributes(method, headers.LogID)...))
	defer span.End()
	fields := maps.Clone(headers.Fields)
	if fields == nil {
		fields = make(map[string]string)
	}
	c.propagator.Inject(ctx, propagation.MapCarrier(fields))
	options = append(options[:len(options):len(options)], rpc.WithFields(fields))
	if s := span.SpanContext(); s.IsSampled() {
		var above int64
		if parent.TraceID() == s.TraceID() {
			above = spanNumber(parent.SpanID())
		}
		span.SetAttributes(traceAttribute(traceNumber(s.TraceID())))
		options = append(options, rpc.WithTrace(traceNumber(s.TraceID()), spanNumber(s.SpanID()), above))
	}
	err := c.next.Call(ctx, method, in, out, options...)
	setStatus(span, err)
	return err
}

// NewInterceptor returns an interceptor for servers that makes a span of each call. Handlers find
// it with trace.SpanFromContext.
func NewInterceptor(o Options) rpc.Interceptor {
	o.setDefaults()
	tracer := o.tracer()
	return func(ctx context.Context, in proto.Message, next rpc.Handler) (proto.Message, error) {
		call := rpc.FromContext(ctx)
		ctx = o.Propagator.Extract(ctx, propagation.MapCarrier(call.Fields))
		if !trace.SpanContextFromContext(ctx).IsValid() && call.TraceID != 0 && call.SpanID != 0 {
			ctx = trace.ContextWithRemoteSpanContext(ctx, parentOf(call))
		}
		method := call.Service + "/" + call.Method
		ctx, span := tracer.Start(ctx, method, trace.WithSpanKind(trace.SpanKindServer), trace.WithAttributes(attributes(method, call.LogID)...))
		defer span.End()
		span.SetAttributes(attribute.String("network.peer.address", call.Remote.String()))
		if call.TraceID != 0 {
			span.SetAttributes(traceAttribute(call.TraceID))
		}
		out, err := next(ctx, in)
		setStatus(span, err)
		return out, err
	}
}

// parentOf returns the span of a client that sends only the fields of brpc.
func parentOf(call *rpc.Call) trace.SpanContext {
	c := trace.SpanContextConfig{TraceFlags: trace.FlagsSampled, Remote: true}
	binary.BigEndian.PutUint64(c.TraceID[8:], uint64(call.TraceID))
	binary.BigEndian.PutUint64(c.SpanID[:], uint64(call.SpanID))
	return trace.NewSpanContext(c)
}

// traceNumber returns the last 8 bytes of the id of a trace.
func traceNumber(id trace.TraceID) int64 { return int64(binary.BigEndian.Uint64(id[8:])) }

func spanNumber(id trace.SpanID) int64 { return int64(binary.BigEndian.Uint64(id[:])) }

func attributes(method string, logID int64) []attribute.KeyValue {
	service, name, _ := strings.Cut(method, "/")
	list := []attribute.KeyValue{
		attribute.String("rpc.system", "baidu_std"), attribute.String("rpc.service", service), attribute.String("rpc.method", name),
	}
	if logID != 0 {
		list = append(list, attribute.Int64("rpc.baidu_std.log_id", logID))
	}
	return list
}

func traceAttribute(id int64) attribute.KeyValue {
	return attribute.String("rpc.baidu_std.trace_id", fmt.Sprintf("%x", uint64(id)))
}

func setStatus(span trace.Span, err error) {
	if err != nil {
		span.SetAttributes(attribute.Int("rpc.baidu_std.error_code", int(rpc.CodeOf(err))))
		span.SetStatus(codes.Error, err.Error())
	}
}
