// Command brpcgo is a client and a server of the echo service on brpc-go, for tools/rpcpeers/run,
// with the flags of ../peer.cc that brpc-go can express.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/icexin/brpc-go"
	bstd "github.com/icexin/brpc-go/protocol/brpc-std"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

var (
	addr     = flag.String("addr", "", "server")
	msg      = flag.String("msg", "", "message")
	bigmsg   = flag.Int("bigmsg", 0, "bytes of a message")
	service  = flag.String("service", "example.EchoService", "service")
	method   = flag.String("method", "Echo", "method")
	timeout  = flag.Int("timeout", 5000, "milliseconds")
	n        = flag.Int("n", 1, "calls one after another")
	parallel = flag.Int("parallel", 1, "goroutines")
)

func main() {
	flag.Parse()
	err := fmt.Errorf("usage: brpcgo [FLAGS] serve|call")
	switch flag.Arg(0) {
	case "serve":
		err = serve()
	case "call":
		err = call()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// handle echoes a message. StringValue has the encoding of EchoRequest and EchoResponse.
func handle(_ any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
	in := new(wrapperspb.StringValue)
	if err := decode(in); err != nil {
		return nil, err
	}
	if strings.HasPrefix(in.GetValue(), "ERR") {
		return nil, errors.New("told to")
	}
	if in.GetValue() == "SLEEP" {
		fmt.Println("SLEEP")
		time.Sleep(800 * time.Millisecond)
	}
	return in, nil
}

func serve() error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		return err
	}
	s := brpc.NewServer(bstd.ProtocolName)
	s.RegisterService(&grpc.ServiceDesc{
		ServiceName: "example.EchoService", HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{{MethodName: "Echo", Handler: handle}},
	}, nil)
	fmt.Println(port)
	go func() { _ = s.Serve(l) }() // until the process ends
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

func call() error {
	conn, err := brpc.Dial(bstd.ProtocolName, *addr)
	if err != nil {
		return err
	}
	text := *msg
	if *bigmsg > 0 {
		text = strings.Repeat("m", *bigmsg)
	}
	var group sync.WaitGroup
	for range *parallel {
		group.Go(func() {
			for range *n {
				fmt.Println(outcome(conn, text))
			}
		})
	}
	group.Wait()
	return nil
}

// code finds the code in an error of brpc-go, which has no other form.
var code = regexp.MustCompile(`code:(\d+)`)

func outcome(conn grpc.ClientConnInterface, text string) string {
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(*timeout)*time.Millisecond)
	defer cancel()
	out := new(wrapperspb.StringValue)
	err := conn.Invoke(ctx, "/"+*service+"/"+*method, wrapperspb.String(text), out)
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return "failed code=1008"
	case err != nil:
		if m := code.FindStringSubmatch(err.Error()); m != nil {
			return fmt.Sprintf("failed code=%s text=%v", m[1], err)
		}
		return fmt.Sprintf("failed text=%v", err)
	case out.GetValue() != text:
		return fmt.Sprintf("differs len=%d", len(out.GetValue()))
	}
	return fmt.Sprintf("ok len=%d att=0", len(text))
}
