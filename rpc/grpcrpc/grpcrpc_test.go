package grpcrpc_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/rpc"
	"github.com/kvlane/kvlane/rpc/chain"
	"github.com/kvlane/kvlane/rpc/grpcrpc"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// handler implements a service of gRPC's own tests. The payload selects the behaviour.
type handler struct {
	pb.UnimplementedTestServiceServer
}

func (handler) UnaryCall(ctx context.Context, in *pb.SimpleRequest) (*pb.SimpleResponse, error) {
	method, _ := grpc.Method(ctx)
	md, _ := metadata.FromIncomingContext(ctx)
	out := &pb.SimpleResponse{Payload: in.GetPayload(), Username: method, OauthScope: fmt.Sprintf("%q %q", md["key"], md["data-bin"])}
	if err := grpc.SetHeader(ctx, metadata.Pairs("head", "1", "head-bin", "\x00\xff", "head-bin", "two")); err != nil {
		return nil, err
	}
	if err := grpc.SetTrailer(ctx, metadata.Pairs("tail", "3", "tail-bin", "\x01")); err != nil {
		return nil, err
	}
	if p, ok := peer.FromContext(ctx); !ok || p.Addr == nil {
		return nil, status.Error(codes.Internal, "no peer")
	}
	if s := in.GetResponseStatus(); s != nil {
		st := status.New(codes.Code(s.GetCode()), s.GetMessage())
		if in.GetFillUsername() {
			var err error
			if st, err = st.WithDetails(in.GetPayload()); err != nil {
				return nil, err
			}
		}
		return out, st.Err()
	}
	switch string(in.GetPayload().GetBody()) {
	case "plain error":
		return nil, errors.New("plain")
	case "wrapped status":
		return nil, fmt.Errorf("wrapped: %w", status.Error(codes.NotFound, "inner"))
	case "context error":
		return nil, context.DeadlineExceeded
	case "send header":
		if err := grpc.SendHeader(ctx, metadata.Pairs("more", "2")); err != nil {
			return nil, err
		}
		if err := grpc.SetHeader(ctx, metadata.Pairs("more", "late")); err == nil {
			return nil, status.Error(codes.Internal, "SetHeader after SendHeader")
		}
	case "deadline":
		end, ok := ctx.Deadline()
		out.Hostname = fmt.Sprint(ok, time.Until(end) > 50*time.Second)
		if !ok {
			return out, nil
		}
	case "wait":
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return out, nil
}

func (handler) EmptyCall(context.Context, *pb.Empty) (*pb.Empty, error) { return new(pb.Empty), nil }

// serveRPC serves the handler on package rpc.
func serveRPC(t *testing.T, o rpc.ServerOptions, r *grpcrpc.Registrar, impl pb.TestServiceServer, client ...rpc.ClientOptions) *rpc.Client {
	t.Helper()
	pb.RegisterTestServiceServer(r, impl)
	services, err := r.Services()
	if err != nil {
		t.Fatal(err)
	}
	s, err := rpc.NewServer(o)
	if err == nil {
		err = s.Register(services...)
	}
	if err != nil {
		t.Fatal(err)
	}
	l := listen(t)
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	c, err := rpc.NewClient(l.Addr().String(), append(client, rpc.ClientOptions{})[0])
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

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// serveGRPC serves the handler on gRPC.
func serveGRPC(t *testing.T, impl pb.TestServiceServer) pb.TestServiceClient {
	t.Helper()
	s := grpc.NewServer()
	pb.RegisterTestServiceServer(s, impl)
	l := listen(t)
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	c, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		err := c.Close()
		s.Stop()
		if err := errors.Join(err, <-served); err != nil {
			t.Error(err)
		}
	})
	return pb.NewTestServiceClient(c)
}

// outcome is the result of a call as its caller sees it.
type outcome struct {
	Response        *pb.SimpleResponse
	Status          *spb.Status
	Header, Trailer metadata.MD
}

func unaryCall(ctx context.Context, c pb.TestServiceClient, in *pb.SimpleRequest) outcome {
	var o outcome
	out, err := c.UnaryCall(ctx, in, grpc.Header(&o.Header), grpc.Trailer(&o.Trailer))
	if err == nil {
		o.Response = out
	}
	o.Status = status.Convert(err).Proto()
	delete(o.Header, "content-type")             // of HTTP
	delete(o.Trailer, "grpc-status-details-bin") // part of the status
	return o
}

// TestSameAsGRPC calls the same handler over package rpc and over gRPC. The caller gets the same
// response, status, header and trailer.
func TestSameAsGRPC(t *testing.T) {
	var r grpcrpc.Registrar
	over, direct := pb.NewTestServiceClient(grpcrpc.NewConn(serveRPC(t, rpc.ServerOptions{}, &r, handler{}))), serveGRPC(t, handler{})
	requests := []*pb.SimpleRequest{{}}
	for _, body := range []string{"hello", "plain error", "wrapped status", "context error", "send header", "deadline"} {
		requests = append(requests, &pb.SimpleRequest{Payload: &pb.Payload{Body: []byte(body), Type: 7}, ResponseSize: -3})
	}
	for code := codes.Canceled; code <= codes.Unauthenticated+1; code++ { // the last one is unknown
		requests = append(requests, &pb.SimpleRequest{
			ResponseStatus: &pb.EchoStatus{Code: int32(code), Message: "text\nin\tlines, \u00e9"},
			Payload:        &pb.Payload{Body: []byte("detail")}, FillUsername: code%2 == 0,
		})
	}
	for _, in := range requests {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		ctx = metadata.AppendToOutgoingContext(ctx, "key", "v, w", "Data-Bin", "\x00\x01,", "data-bin", "")
		got, want := unaryCall(ctx, over, in), unaryCall(ctx, direct, in)
		cancel()
		if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
			t.Errorf("%v: gRPC (-), package rpc (+): %s", in, diff)
		}
	}
}

// TestEndOfTheContext compares calls whose context ends, and rpc.CodeOf of their errors.
func TestEndOfTheContext(t *testing.T) {
	var r grpcrpc.Registrar
	client := serveRPC(t, rpc.ServerOptions{}, &r, handler{})
	over, direct := pb.NewTestServiceClient(grpcrpc.NewConn(client)), serveGRPC(t, handler{})
	in := &pb.SimpleRequest{Payload: &pb.Payload{Body: []byte("wait")}}
	for _, c := range []pb.TestServiceClient{over, direct} {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
		_, err := c.UnaryCall(ctx, in)
		cancel()
		if status.Code(err) != codes.DeadlineExceeded || c == over && rpc.CodeOf(err) != rpc.TimedOut {
			t.Errorf("after the deadline: %v", err)
		}
		ctx, cancel = context.WithCancel(t.Context())
		time.AfterFunc(10*time.Millisecond, cancel)
		if _, err = c.UnaryCall(ctx, in); status.Code(err) != codes.Canceled || c == over && rpc.CodeOf(err) != rpc.Canceled {
			t.Errorf("after the end of the context: %v", err)
		}
	}
}

func TestStreamsAndUnknownMethods(t *testing.T) {
	var r grpcrpc.Registrar
	over := pb.NewTestServiceClient(grpcrpc.NewConn(serveRPC(t, rpc.ServerOptions{}, &r, handler{})))
	if _, err := over.FullDuplexCall(t.Context()); status.Code(err) != codes.Unimplemented {
		t.Error(err)
	}
	if _, err := over.StreamingOutputCall(t.Context(), new(pb.StreamingOutputCallRequest)); status.Code(err) != codes.Unimplemented {
		t.Error(err)
	}
	if _, err := over.UnimplementedCall(t.Context(), new(pb.Empty)); status.Code(err) != codes.Unimplemented { // the handler is gRPC's own
		t.Error(err)
	}
	if _, err := over.EmptyCall(t.Context(), new(pb.Empty)); err != nil {
		t.Error(err)
	}
}

// TestCodes covers clients and servers of package rpc alone, which send and see codes.
func TestCodes(t *testing.T) {
	var r grpcrpc.Registrar
	client := serveRPC(t, rpc.ServerOptions{}, &r, handler{})
	for c, want := range map[codes.Code]rpc.Code{
		codes.Canceled: rpc.Canceled, codes.Unknown: rpc.Internal, codes.InvalidArgument: rpc.BadRequest, codes.DeadlineExceeded: rpc.TimedOut,
		codes.NotFound: 2, codes.AlreadyExists: 17, codes.PermissionDenied: 1, codes.ResourceExhausted: rpc.LimitReached,
		codes.FailedPrecondition: rpc.Internal, codes.Unimplemented: rpc.NoMethod, codes.Internal: rpc.Internal,
		codes.Unavailable: rpc.LogOff, codes.DataLoss: rpc.Internal, codes.Unauthenticated: rpc.Unauthorized,
	} {
		in := &pb.SimpleRequest{ResponseStatus: &pb.EchoStatus{Code: int32(c), Message: "the text"}}
		err := client.Call(t.Context(), "grpc.testing.TestService/UnaryCall", in, new(pb.SimpleResponse))
		if rpc.CodeOf(err) != want || !strings.HasSuffix(err.Error(), "the text") {
			t.Errorf("%v: %v, not code %d", c, err, want)
		}
	}
	for code, want := range map[rpc.Code]codes.Code{
		rpc.Canceled: codes.Canceled, rpc.NoService: codes.Unimplemented, rpc.NoMethod: codes.Unimplemented, rpc.BadRequest: codes.InvalidArgument,
		22: codes.InvalidArgument, rpc.Unauthorized: codes.Unauthenticated, rpc.TimedOut: codes.DeadlineExceeded, 110: codes.DeadlineExceeded,
		rpc.FailedSocket: codes.Unavailable, rpc.EndOfFile: codes.Unavailable, rpc.Closed: codes.Unavailable, rpc.LogOff: codes.Unavailable,
		rpc.Overcrowded: codes.ResourceExhausted, rpc.LimitReached: codes.ResourceExhausted, rpc.Internal: codes.Internal, rpc.BadResponse: codes.Internal,
		1: codes.PermissionDenied, 13: codes.PermissionDenied, 2: codes.NotFound, 17: codes.AlreadyExists, 12345: codes.Unknown, -1: codes.Unknown,
	} {
		_, err := pb.NewTestServiceClient(grpcrpc.NewConn(failing(code))).EmptyCall(t.Context(), new(pb.Empty))
		if status.Code(err) != want || status.Convert(err).Message() != "the text" || rpc.CodeOf(err) != code {
			t.Errorf("%d: %v, not %v", code, err, want)
		}
	}
}

// failing is an rpc.Caller whose calls fail with a code.
type failing rpc.Code

func (f failing) Call(context.Context, string, proto.Message, proto.Message, ...rpc.CallOption) error {
	return rpc.Errorf(rpc.Code(f), "the text")
}

// inspecting checks requests on the server.
type inspecting struct {
	handler
	check func(*rpc.Call) error
}

func (h inspecting) EmptyCall(ctx context.Context, _ *pb.Empty) (*pb.Empty, error) {
	call := rpc.FromContext(ctx)
	call.Reply.Attachment = call.Attachment.Cut(call.Attachment.Len())
	call.Reply.Fields = map[string]string{"Set": "by the handler"}
	return new(pb.Empty), h.check(call)
}

func TestOptions(t *testing.T) {
	r := grpcrpc.Registrar{Interceptor: func(ctx context.Context, in any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
		if info.FullMethod != "/grpc.testing.TestService/EmptyCall" {
			return nil, status.Error(codes.PermissionDenied, info.FullMethod)
		}
		return next(ctx, in)
	}}
	stub := pb.NewTestServiceClient(grpcrpc.NewConn(serveRPC(t, rpc.ServerOptions{}, &r, inspecting{check: func(c *rpc.Call) error {
		switch {
		case c.LogID == 8:
			return rpc.Errorf(12345, "own code")
		case c.LogID != 7 || c.Fields["a"] != "1,2":
			return rpc.Errorf(rpc.BadRequest, "%+v", c)
		}
		return nil
	}})))
	ctx := metadata.AppendToOutgoingContext(t.Context(), "A", "1", "a", "2")
	got := new(chain.Chain)
	var finished []error
	var header metadata.MD
	options := []grpc.CallOption{
		grpcrpc.WithOptions(rpc.WithLogID(7), rpc.WithAttachment(chain.OfBytes([]byte("attached")))), grpcrpc.WithOptions(rpc.ReceiveAttachment(got)),
		grpc.OnFinish(func(err error) { finished = append(finished, err) }), grpc.Header(&header),
		grpc.UseCompressor("gzip"), grpc.CallContentSubtype("JSON"), grpc.WaitForReady(false), grpc.StaticMethod(),
	}
	if _, err := stub.EmptyCall(ctx, new(pb.Empty), options...); err != nil {
		t.Error(err)
	}
	if b, err := got.Bytes(); err != nil || string(b) != "attached" || len(header.Get("set")) != 1 {
		t.Errorf("%q, %v, %v", b, err, header)
	}
	got.Release()
	_, err := stub.EmptyCall(ctx, new(pb.Empty), grpcrpc.WithOptions(rpc.WithLogID(8)))
	if rpc.CodeOf(err) != 12345 || status.Code(err) != codes.Unknown {
		t.Error(err)
	}
	if _, err := stub.UnaryCall(ctx, new(pb.SimpleRequest)); status.Code(err) != codes.PermissionDenied {
		t.Error(err)
	}
	if len(finished) != 1 || finished[0] != nil {
		t.Error(finished)
	}
	for _, o := range []grpc.CallOption{
		grpc.UseCompressor("br"), grpc.CallContentSubtype("xml"), grpc.WaitForReady(true), grpc.MaxCallRecvMsgSize(1), grpc.MaxCallSendMsgSize(1),
		grpc.Peer(new(peer.Peer)), grpc.PerRPCCredentials(nil), grpc.CallAuthority("a"), grpc.ForceCodecV2(nil),
	} {
		if _, err := stub.EmptyCall(ctx, new(pb.Empty), o); status.Code(err) != codes.Unimplemented {
			t.Errorf("%T: %v", o, err)
		}
	}
}

// TestMetadataLimit sends more metadata than a meta may have.
func TestMetadataLimit(t *testing.T) {
	var r grpcrpc.Registrar
	stub := pb.NewTestServiceClient(grpcrpc.NewConn(serveRPC(t, rpc.ServerOptions{MaxMetaBytes: 1000}, &r, handler{})))
	for n, want := range map[int]codes.Code{800: codes.OK, 1000: codes.Unavailable} { // the server closes the connection
		ctx := metadata.AppendToOutgoingContext(t.Context(), "key", strings.Repeat("x", n))
		if _, err := stub.EmptyCall(ctx, new(pb.Empty)); status.Code(err) != want {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
}

// peers reports the peer of each call.
type peers struct {
	handler
	list chan *peer.Peer
}

func (h peers) EmptyCall(ctx context.Context, _ *pb.Empty) (*pb.Empty, error) {
	p, _ := peer.FromContext(ctx)
	h.list <- p
	return new(pb.Empty), nil
}

// TestPeer checks the peer of a plain connection, and of one with TLS.
func TestPeer(t *testing.T) {
	certified := httptest.NewTLSServer(nil) // for its certificate
	defer certified.Close()
	roots := x509.NewCertPool()
	roots.AddCert(certified.Certificate())
	for _, secured := range []bool{false, true} {
		var so rpc.ServerOptions
		var co rpc.ClientOptions
		if secured {
			so.TLS = &tls.Config{Certificates: certified.TLS.Certificates}
			co.TLS = &tls.Config{RootCAs: roots}
		}
		var r grpcrpc.Registrar
		h := peers{list: make(chan *peer.Peer, 1)}
		stub := pb.NewTestServiceClient(grpcrpc.NewConn(serveRPC(t, so, &r, h, co)))
		if _, err := stub.EmptyCall(t.Context(), new(pb.Empty)); err != nil {
			t.Fatal(err)
		}
		p := <-h.list
		if info, ok := p.AuthInfo.(credentials.TLSInfo); ok != secured || ok && !info.State.HandshakeComplete || !strings.HasPrefix(p.Addr.String(), "127.0.0.1:") {
			t.Errorf("TLS %t: %v", secured, p)
		}
	}
}

func TestRegistrationErrors(t *testing.T) {
	wrong := pb.TestService_ServiceDesc
	wrong.Methods = []grpc.MethodDesc{{MethodName: "EmptyCall", Handler: func(any, context.Context, func(any) error, grpc.UnaryServerInterceptor) (any, error) {
		return nil, nil
	}}}
	for _, register := range []func(*grpcrpc.Registrar){
		func(r *grpcrpc.Registrar) { r.RegisterService(&pb.TestService_ServiceDesc, nil) },
		func(r *grpcrpc.Registrar) { r.RegisterService(&pb.TestService_ServiceDesc, 5) },
		func(r *grpcrpc.Registrar) { r.RegisterService(&wrong, handler{}) },
	} {
		var r grpcrpc.Registrar
		register(&r)
		if list, err := r.Services(); !errors.Is(err, errdefs.ErrInvalid) || len(list) > 0 {
			t.Errorf("%v, %v", list, err)
		}
	}
}
