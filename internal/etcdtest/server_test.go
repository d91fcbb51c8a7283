package etcdtest

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvlane/kvlane/internal/testkit"
)

// standIn is the environment variable with which the test's binary is an etcd: the time from
// listening to serving.
const standIn = "KVLANE_ETCD_STAND_IN"

func TestMain(m *testing.M) {
	if d, err := time.ParseDuration(os.Getenv(standIn)); err == nil {
		serveAfter(d)
	}
	testkit.Main(m)
}

// serveAfter listens at the address of --listen-client-urls, and serves clients after d.
func serveAfter(d time.Duration) {
	url := os.Args[slices.Index(os.Args, "--listen-client-urls")+1]
	l, err := new(net.ListenConfig).Listen(context.Background(), "tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		panic(err)
	}
	time.Sleep(d)
	_ = os.WriteFile(os.Getenv(standIn+"_READY"), nil, 0o600)                        // the test finds it missing
	_ = http.Serve(l, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})) //nolint:gosec // until it is killed
}

// An etcd that is killed before it serves clients may never serve them with its data. A server has
// started when it serves, and a start ends with its context.
func TestStartWaitsUntilEtcdServes(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	ready := filepath.Join(t.TempDir(), "ready")
	t.Setenv(binaries[Versions[1]], self)
	t.Setenv(standIn+"_READY", ready)
	t.Setenv(standIn, "500ms")
	s := Start(t, Versions[1])
	if _, err := os.Stat(ready); err != nil {
		t.Errorf("the server has started, but does not serve: %v", err)
	}
	s.Kill()
	t.Setenv(standIn, "1h")
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := s.start(ctx); !errors.Is(err, context.DeadlineExceeded) || s.cmd != nil {
		t.Errorf("a server that never serves: %v", err)
	}
}

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
