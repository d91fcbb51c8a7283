package rpc_test

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/rpc"
	"github.com/kvlane/kvlane/rpc/echo"
)

// A call takes few allocations, on both sides together.
func TestAllocationsOfACall(t *testing.T) {
	testkit.SkipRace(t, "the race detector drops pooled memory")
	_, addr := startServer(t, rpc.ServerOptions{})
	c := newClient(t, addr, rpc.ClientOptions{})
	in, out := &echo.EchoRequest{Message: proto.String(strings.Repeat("x", 4096))}, new(echo.EchoResponse)
	n := testing.AllocsPerRun(1000, func() {
		if err := c.Call(t.Context(), echoMethod, in, out); err != nil {
			t.Fatal(err)
		}
	})
	if n > 27 {
		t.Errorf("%v allocations", n)
	}
}
