package etcdtest

import (
	"net"
	"testing"
	"time"

	"github.com/kvlane/kvlane/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// A server whose address another listener has starts when it is free.
func TestStartAtATakenAddress(t *testing.T) {
	s := Start(t, Versions[1])
	s.Kill()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", s.Addr)
	if err != nil {
		t.Fatal(err)
	}
	freed := make(chan struct{})
	go func() {
		defer close(freed)
		time.Sleep(time.Second)
		_ = l.Close() // it has accepted nothing
	}()
	s.Start(t)
	select {
	case <-freed:
	default:
		t.Error("the server has started at an address that is taken")
	}
}
