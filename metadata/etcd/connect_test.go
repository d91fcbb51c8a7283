package etcd_test

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/grpc"

	"github.com/kvlane/kvlane/metadata/etcd"
)

// network is a listener in memory. While it is down, it has no connections.
type network struct {
	accepts chan net.Conn
	closed  chan struct{}
	failed  chan struct{} // has a value after an attempt to connect that failed

	mu    sync.Mutex
	down  bool
	conns []net.Conn
}

func newNetwork() *network {
	return &network{accepts: make(chan net.Conn), closed: make(chan struct{}), failed: make(chan struct{}, 1)}
}

func (n *network) dial(context.Context, string) (net.Conn, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.down {
		select {
		case n.failed <- struct{}{}:
		default:
		}
		return nil, errors.New("the network is down")
	}
	near, far := net.Pipe()
	n.conns = append(n.conns, near)
	select {
	case n.accepts <- far:
		return near, nil
	case <-n.closed:
		return nil, net.ErrClosed
	}
}

func (n *network) set(down bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.down = down
	for _, c := range n.conns {
		_ = c.Close() // it ends the requests
	}
	n.conns = nil
}

func (n *network) Accept() (net.Conn, error) {
	select {
	case c := <-n.accepts:
		return c, nil
	case <-n.closed:
		return nil, net.ErrClosed
	}
}

func (n *network) Close() error {
	close(n.closed)
	return nil
}

func (n *network) Addr() net.Addr { return &net.UnixAddr{Name: "memory", Net: "unix"} }

// oneValue is an etcd that has the same value at each key.
type oneValue struct{ pb.UnimplementedKVServer }

func (*oneValue) Range(_ context.Context, r *pb.RangeRequest) (*pb.RangeResponse, error) {
	return &pb.RangeResponse{Header: &pb.ResponseHeader{Revision: 1}, Kvs: []*mvccpb.KeyValue{{Key: r.Key, Value: []byte("v")}}}, nil
}

// After an outage of ten minutes a client connects again within seconds.
func TestConnectAfterALongOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, server := newNetwork(), grpc.NewServer()
		pb.RegisterKVServer(server, &oneValue{})
		go server.Serve(n) //nolint:errcheck // until Stop
		t.Cleanup(server.Stop)
		s := openStore(t, etcd.WithDial(options("memory:1"), grpc.WithContextDialer(n.dial)))
		has := func() bool {
			v, err := s.Get(t.Context(), "k")
			return err == nil && string(v) == "v"
		}
		if !has() {
			t.Fatal("no value before the outage")
		}
		n.set(true)
		for start := time.Now(); time.Since(start) < 10*time.Minute; {
			if has() {
				t.Fatal("a value while the network is down")
			}
		}
		<-n.failed // an earlier attempt
		<-n.failed // the time to the next one begins
		n.set(false)
		start := time.Now()
		waitFor(t, "a value", has)
		if d := time.Since(start); d > 7*time.Second { // 5 s, and a random fifth more
			t.Errorf("the client has connected %v after the outage", d)
		}
	})
}
