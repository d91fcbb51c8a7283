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

// TestPageHasTheExamples compares the code on the page with examples. Their error checks are
// omitted there.
func TestPageHasTheExamples(t *testing.T) {
	read := func(name string) string {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	examples := []string{"example_test.go", "example_page_test.go", "example_page_test.go", "example_page_test.go", "cluster/example_test.go"}
	blocks := strings.Split(read("../docs/rpc.md"), "```go\n")[1:]
	for _, block := range blocks {
		code, _, _ := strings.Cut(block, "```")
		if strings.Contains(code, "rpc.OpenRDMA") {
			continue // its objects need hardware
		}
		if len(examples) == 0 {
			t.Fatal("the page has more code than the examples")
		}
		rest := read(examples[0])
		for line := range strings.Lines(code) {
			line = strings.TrimSpace(line)
			_, after, ok := strings.Cut(rest, line)
			if !ok {
				t.Fatalf("%s has no line %q, or in another order", examples[0], line)
			}
			rest = after
		}
		examples = examples[1:]
	}
	if len(examples) > 0 {
		t.Errorf("the page has no code of %v", examples)
	}
}
