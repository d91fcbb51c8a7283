package rpc_test

import (
	"context"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/kvlane/kvlane/rpc"
	"github.com/kvlane/kvlane/rpc/echo"
)

// echoFunc is a handler of the generated interface.
type echoFunc func(context.Context, *echo.EchoRequest) (*echo.EchoResponse, error)

func (f echoFunc) Echo(ctx context.Context, in *echo.EchoRequest) (*echo.EchoResponse, error) {
	return f(ctx, in)
}

func TestStub(t *testing.T) {
	var replace rpc.Interceptor = func(ctx context.Context, in proto.Message, next rpc.Handler) (proto.Message, error) {
		if r, ok := in.(*echo.EchoRequest); ok && r.GetMessage() == "wrong type" {
			in = new(echo.EchoResponse)
		}
		return next(ctx, in)
	}
	_, addr := serve(t, rpc.ServerOptions{Interceptors: []rpc.Interceptor{replace}}, echo.NewEchoService(echoFunc(func(ctx context.Context, in *echo.EchoRequest) (*echo.EchoResponse, error) {
		switch in.GetMessage() {
		case "nothing":
			return nil, nil
		case "fail":
			return nil, rpc.Errorf(42, "failed")
		}
		return &echo.EchoResponse{Message: proto.String(rpc.FromContext(ctx).RequestID + in.GetMessage())}, nil
	})))
	stub := echo.NewEchoServiceStub(newClient(t, addr, rpc.ClientOptions{}))
	out, err := stub.Echo(t.Context(), &echo.EchoRequest{Message: proto.String("hello")}, rpc.WithRequestID("id "))
	if err != nil || out.GetMessage() != "id hello" {
		t.Errorf("%v, %v", out, err)
	}
	for _, c := range []struct {
		message string
		code    rpc.Code
		text    string
	}{
		{"fail", 42, "failed"},
		{"nothing", rpc.BadResponse, "the handler returned no response"},
		{"wrong type", rpc.Internal, "an interceptor passed a request of type *echo.EchoResponse"},
	} {
		out, err := stub.Echo(t.Context(), &echo.EchoRequest{Message: proto.String(c.message)})
		if out != nil || rpc.CodeOf(err) != c.code || !strings.HasSuffix(err.Error(), c.text) {
			t.Errorf("%s: %v, %v", c.message, out, err)
		}
	}
}
