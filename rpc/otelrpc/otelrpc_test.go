package otelrpc_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	api "go.opentelemetry.io/otel/trace"
	"google.golang.org/protobuf/proto"

	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/rpc"
	"github.com/kvlane/kvlane/rpc/echo"
	"github.com/kvlane/kvlane/rpc/otelrpc"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// handler returns the fields of the request that concern traces, or fails.
type handler struct{}

func (handler) Echo(ctx context.Context, in *echo.EchoRequest) (*echo.EchoResponse, error) {
	if in.GetMessage() == "fail" {
		return nil, rpc.Errorf(42, "failed")
	}
	call, span := rpc.FromContext(ctx), api.SpanContextFromContext(ctx)
	return &echo.EchoResponse{Message: proto.String(fmt.Sprintf("%x %x %x %s|%s|%s", uint64(call.TraceID), uint64(call.SpanID),
		uint64(call.ParentSpanID), call.Fields["traceparent"], call.Fields["own"], span.SpanID()))}, nil
}

// setup starts a server with the interceptor. It returns a client without spans.
func setup(t *testing.T, o otelrpc.Options) *rpc.Client {
	t.Helper()
	s, err := rpc.NewServer(rpc.ServerOptions{Interceptors: []rpc.Interceptor{otelrpc.NewInterceptor(o)}})
	if err == nil {
		err = s.Register(echo.NewEchoService(handler{}))
	}
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	c, err := rpc.NewClient(l.Addr().String(), rpc.ClientOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(c.Close(), s.Close(), <-served); err != nil {
			t.Error(err)
		}
	})
	return c
}

func provider(sampler trace.Sampler) (otelrpc.Options, *tracetest.SpanRecorder) {
	r := tracetest.NewSpanRecorder()
	return otelrpc.Options{Provider: trace.NewTracerProvider(trace.WithSpanProcessor(r), trace.WithSampler(sampler))}, r
}

// describe returns the kind, name, attributes and status of a span.
func describe(s trace.ReadOnlySpan) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%v %s", s.SpanKind(), s.Name())
	for _, a := range s.Attributes() {
		if a.Key == "network.peer.address" {
			fmt.Fprintf(&b, " peer:%t", strings.HasPrefix(a.Value.AsString(), "127.0.0.1:"))
		} else {
			fmt.Fprintf(&b, " %s=%v", a.Key, a.Value.AsInterface())
		}
	}
	return b.String()
}

const method = "rpc.system=baidu_std rpc.service=example.EchoService rpc.method=Echo"

// TestSpans makes a call within a span, with spans on both sides.
func TestSpans(t *testing.T) {
	o, recorder := provider(trace.AlwaysSample())
	stub := echo.NewEchoServiceStub(otelrpc.NewCaller(setup(t, o), o))
	ctx, root := o.Provider.Tracer("test").Start(t.Context(), "root")
	fields := map[string]string{"own": "field"}
	out, err := stub.Echo(ctx, &echo.EchoRequest{Message: proto.String("hello")}, rpc.WithLogID(99), rpc.WithFields(fields))
	root.End()
	if err != nil || len(fields) != 1 {
		t.Fatal(err, fields)
	}
	spans := recorder.Ended() // in the order in which they ended
	if len(spans) != 3 {
		t.Fatalf("%d spans", len(spans))
	}
	server, client := spans[0], spans[1]
	id := client.SpanContext().TraceID()
	if client.Parent().SpanID() != root.SpanContext().SpanID() || server.Parent().SpanID() != client.SpanContext().SpanID() ||
		server.SpanContext().TraceID() != id || id != root.SpanContext().TraceID() || !server.Parent().IsRemote() {
		t.Errorf("root %v, client %v, server %v", root.SpanContext(), client.SpanContext(), server.SpanContext())
	}
	low := strings.TrimLeft(id.String()[16:], "0")
	want := fmt.Sprintf("%s %s %s 00-%s-%s-01|field|%s", low, strings.TrimLeft(client.SpanContext().SpanID().String(), "0"),
		strings.TrimLeft(root.SpanContext().SpanID().String(), "0"), id, client.SpanContext().SpanID(), server.SpanContext().SpanID())
	if out.GetMessage() != want {
		t.Errorf("the handler has\n%s, not\n%s", out.GetMessage(), want)
	}
	attributes := " example.EchoService/Echo " + method + " rpc.baidu_std.log_id=99"
	if got := describe(client); got != "client"+attributes+" rpc.baidu_std.trace_id="+low {
		t.Error(got)
	}
	if got := describe(server); got != "server"+attributes+" peer:true rpc.baidu_std.trace_id="+low {
		t.Error(got)
	}
}

// TestErrorsOfCalls checks the status of the spans of a failed call.
func TestErrorsOfCalls(t *testing.T) {
	o, recorder := provider(trace.AlwaysSample())
	stub := echo.NewEchoServiceStub(otelrpc.NewCaller(setup(t, o), o))
	if _, err := stub.Echo(t.Context(), &echo.EchoRequest{Message: proto.String("fail")}); rpc.CodeOf(err) != 42 {
		t.Error(err)
	}
	for _, s := range recorder.Ended() {
		if s.Status().Code != codes.Error || !strings.HasSuffix(s.Status().Description, "failed") || !strings.HasSuffix(describe(s), " rpc.baidu_std.error_code=42") {
			t.Errorf("%s: %v", describe(s), s.Status())
		}
	}
	if n := len(recorder.Ended()); n != 2 {
		t.Errorf("%d spans", n)
	}
}

// TestClientOfBrpc sends the fields that brpc sends.
func TestClientOfBrpc(t *testing.T) {
	o, recorder := provider(trace.ParentBased(trace.NeverSample()))
	stub := echo.NewEchoServiceStub(setup(t, o))
	for _, c := range []struct {
		trace, span int64
		parent      string
	}{
		{-2, 0x12345, "0000000000000000fffffffffffffffe 0000000000012345"},
		{0, 5, ""},
		{5, 0, ""}, // no span of a client: the sampler decides
	} {
		recorder.Reset()
		if _, err := stub.Echo(t.Context(), &echo.EchoRequest{Message: proto.String("hello")}, rpc.WithTrace(c.trace, c.span, 0)); err != nil {
			t.Fatal(err)
		}
		got := ""
		for _, s := range recorder.Ended() {
			got += s.Parent().TraceID().String() + " " + s.Parent().SpanID().String()
			if d := describe(s); !strings.HasSuffix(d, "trace_id=fffffffffffffffe") {
				t.Error(d)
			}
		}
		if got != c.parent {
			t.Errorf("%+v: parent %q", c, got)
		}
	}
}

// TestUnsampled checks that an unsampled span is not sent in the fields of brpc, and that calls
// without any provider pass.
func TestUnsampled(t *testing.T) {
	o, recorder := provider(trace.NeverSample())
	client := setup(t, o)
	for _, c := range []rpc.Caller{otelrpc.NewCaller(client, o), otelrpc.NewCaller(client, otelrpc.Options{})} {
		out, err := echo.NewEchoServiceStub(c).Echo(t.Context(), &echo.EchoRequest{Message: proto.String("hello")})
		if err != nil || !strings.HasPrefix(out.GetMessage(), "0 0 0 ") || strings.Contains(out.GetMessage(), "-01|") {
			t.Errorf("%v, %v", out, err)
		}
	}
	if n := len(recorder.Ended()); n > 0 {
		t.Errorf("%d spans", n)
	}
}
