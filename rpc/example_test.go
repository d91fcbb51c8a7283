package rpc_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/kvlane/kvlane/rpc"
	"github.com/kvlane/kvlane/rpc/echo"
)

type echoService struct{}

func (echoService) Echo(ctx context.Context, in *echo.EchoRequest) (*echo.EchoResponse, error) {
	call := rpc.FromContext(ctx)
	call.Reply.Attachment = call.Attachment.Cut(call.Attachment.Len()) // back, without a copy
	return &echo.EchoResponse{Message: in.Message}, nil
}

func Example() {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	s, err := rpc.NewServer(rpc.ServerOptions{})
	if err != nil {
		panic(err)
	}
	err = s.Register(echo.NewEchoService(echoService{}))
	if err != nil {
		panic(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err = s.Serve(listener); err != nil { // until Shutdown or Close
			panic(err)
		}
	}()

	ctx, address := context.Background(), listener.Addr().String()
	c, err := rpc.NewClient(address, rpc.ClientOptions{})
	if err != nil {
		panic(err)
	}
	out, err := echo.NewEchoServiceStub(c).Echo(ctx, &echo.EchoRequest{Message: proto.String("hello")})
	fmt.Println(out.GetMessage(), err)
	_, _ = c.Close(), s.Shutdown(ctx) // the example is over
	<-done
	// Output: hello <nil>
}

// TestPageHasTheExample compares the code on the page with Example. Its error checks are omitted
// there.
func TestPageHasTheExample(t *testing.T) {
	page, err := os.ReadFile("../docs/rpc.md")
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile("example_test.go")
	if err != nil {
		t.Fatal(err)
	}
	_, code, _ := strings.Cut(string(page), "```go\n")
	code, _, _ = strings.Cut(code, "```")
	rest, lines := string(source), 0
	for line := range strings.Lines(code) {
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		_, after, ok := strings.Cut(rest, line)
		if !ok {
			t.Fatalf("the example has no line %q, or in another order", line)
		}
		rest, lines = after, lines+1
	}
	if lines < 10 {
		t.Errorf("the page has %d lines of code", lines)
	}
}
