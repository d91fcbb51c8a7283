package cluster_test

import (
	"context"
	"fmt"
	"net"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/kvlane/kvlane/metadata"
	"github.com/kvlane/kvlane/rpc"
	"github.com/kvlane/kvlane/rpc/cluster"
	"github.com/kvlane/kvlane/rpc/echo"
)

type service struct{}

func (service) Echo(_ context.Context, in *echo.EchoRequest) (*echo.EchoResponse, error) {
	return &echo.EchoResponse{Message: in.Message}, nil
}

// serve starts a server and returns its address.
func serve() (address string, stop func()) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	s, err := rpc.NewServer(rpc.ServerOptions{})
	if err != nil {
		panic(err)
	}
	if err := s.Register(echo.NewEchoService(service{})); err != nil {
		panic(err)
	}
	go func() { _ = s.Serve(l) }()                                   // it ends with stop
	return l.Addr().String(), func() { _, _ = s.Close(), l.Close() } // Serve may not have begun
}

// One of two servers is gone. The stub's calls succeed at the other one.
func Example() {
	here, stop := serve()
	defer stop()
	gone, stopGone := serve()
	stopGone()
	members, err := metadata.ParseMembers(here + "," + gone + "=2")
	if err != nil {
		panic(err)
	}
	c, err := cluster.New(members, cluster.Options{Policy: cluster.LeastLoaded})
	if err != nil {
		panic(err)
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for range 2 {
		out, err := echo.NewEchoServiceStub(c).Echo(ctx, &echo.EchoRequest{Message: proto.String("hello")})
		fmt.Println(out.GetMessage(), err)
	}
	stats := c.Stats()
	fmt.Println(stats.Retries, "retry")
	for _, s := range stats.Servers {
		if s.Ejected {
			fmt.Println("ejected:", s.Address == gone, s.Why != nil)
		}
	}
	// Output:
	// hello <nil>
	// hello <nil>
	// 1 retry
	// ejected: true true
}

// The forms of lists of servers. It is compiled, and not run.
func ExampleNew() {
	ctx := context.Background()
	fixed, err := metadata.ParseMembers("10.0.0.1:8000,10.0.0.2:8000=2") // HOST:PORT, or HOST:PORT=WEIGHT
	if err != nil {
		panic(err)
	}
	file, err := metadata.OpenFileMembers("servers.txt", 0) // such a member in each line
	if err != nil {
		panic(err)
	}
	defer file.Close()
	members, err := metadata.OpenDNSMembers(ctx, "_rpc._tcp.example.com", metadata.DNSOptions{}) // or HOST:PORT
	if err != nil {
		panic(err)
	}
	defer members.Close()

	c, err := cluster.New(members, cluster.Options{
		Policy:      cluster.LeastLoaded,
		Idempotent:  func(method string) bool { return method == "example.EchoService/Echo" },
		BackupAfter: 20 * time.Millisecond,
	})
	if err != nil {
		panic(err)
	}
	defer c.Close()
	out, err := echo.NewEchoServiceStub(c).Echo(ctx, &echo.EchoRequest{Message: proto.String("hello")})
	fmt.Println(fixed, out, err)
}
