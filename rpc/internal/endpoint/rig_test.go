package endpoint_test

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/kvlane/kvlane/internal/sys/hostmem"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/rdma"
	"github.com/kvlane/kvlane/rdma/registry"
	"github.com/kvlane/kvlane/rdma/soft"
	"github.com/kvlane/kvlane/rpc/chain"
	"github.com/kvlane/kvlane/rpc/internal/endpoint"
	"github.com/kvlane/kvlane/rpc/internal/hello"
)

func TestMain(m *testing.M) { testkit.Main(m) }

func check(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

const blockBytes = 8 << 10

// side is one process with a NIC and memory.
type side struct {
	nic           *registry.Registry
	receive, send *mem.Arena
	options       endpoint.Options
}

// hooks returns the hooks of an arena of pageable memory that is registered with the NIC.
func hooks(nic *registry.Registry, access rdma.Access) mem.ArenaHooks {
	return mem.ArenaHooks{
		Alloc: func(n int64) (*mem.Region, error) {
			b, err := hostmem.Alloc(n)
			if err != nil {
				return nil, err
			}
			return hostmem.Region(b)
		},
		Free: func(r *mem.Region) error { return hostmem.Free(r.Bytes()) },
		Register: func(r *mem.Region) (uint32, error) {
			if err := nic.Register(rdma.MROptions{Access: access}, r); err != nil {
				return 0, err
			}
			m, err := nic.Acquire(mem.All(r), access)
			if err != nil {
				return 0, err
			}
			defer m.Release() // the arena keeps it registered
			return m.Info().LKey, nil
		},
		Deregister: func(ctx context.Context, r *mem.Region) error { return nic.Unregister(ctx, r) },
	}
}

func newSide(tb testing.TB, p rdma.Provider, device string, regions int) *side {
	tb.Helper()
	set := registry.NewDevices(p).NewSet(registry.Options{})
	tb.Cleanup(func() { check(tb, set.Close()) })
	nic, err := set.NIC(device)
	check(tb, err)
	port, err := rdma.FindPort(nic.Device(), rdma.PortOptions{})
	check(tb, err)
	s := &side{nic: nic}
	open := func(n int, access rdma.Access) *mem.Arena {
		a, err := mem.NewArena(mem.ArenaOptions{BlockBytes: blockBytes, RegionBytes: 32 * blockBytes, MaxRegions: n, Hooks: hooks(nic, access)})
		check(tb, err)
		tb.Cleanup(func() { check(tb, a.Close(context.Background())) })
		return a
	}
	s.receive, s.send = open(regions, rdma.AccessLocalWrite), open(8, rdma.AccessLocalWrite|rdma.AccessRelaxedOrdering)
	s.options = endpoint.Options{
		NIC: nic, Port: port, Receive: s.receive, Send: s.send, Wrap: chain.NewRegistered, Queue: 16, Stall: min(testkit.Patience(), 20*time.Second),
	}
	return s
}

// pair returns two sides of one software NIC.
func pair(tb testing.TB, o soft.Options, regions int) (client, server *side) {
	tb.Helper()
	p, err := soft.New(o)
	check(tb, err)
	tb.Cleanup(func() { check(tb, p.Close()) })
	return newSide(tb, p, "soft0", regions), newSide(tb, p, "soft0", regions)
}

// tcp returns the two ends of a connection.
func tcp(tb testing.TB) (client, server net.Conn) {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(tb, err)
	defer func() { check(tb, l.Close()) }()
	accepted := make(chan net.Conn, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			tb.Error(err)
		}
		accepted <- c
	}()
	client, err = net.Dial("tcp", l.Addr().String())
	check(tb, err)
	server = <-accepted
	tb.Cleanup(func() { _, _ = client.Close(), server.Close() })
	return client, server
}

// connection is a connected pair of endpoints.
type connection struct {
	client, server *endpoint.Endpoint
	nc             [2]net.Conn
}

var errEnd = errors.New("the test ends")

func connect(tb testing.TB, c, s *side, v hello.Version) *connection {
	tb.Helper()
	k := new(connection)
	k.nc[0], k.nc[1] = tcp(tb)
	type result struct {
		e            *endpoint.Endpoint
		refusal, err error
	}
	done := make(chan result, 1)
	go func() {
		e, refusal, err := endpoint.Accept(context.Background(), k.nc[1], &s.options, s.options.Stall)
		done <- result{e, refusal, err}
	}()
	e, refusal, err := endpoint.Dial(tb.Context(), k.nc[0], v, &c.options)
	r := <-done
	check(tb, errors.Join(refusal, err, r.refusal, r.err))
	k.client, k.server = e, r.e
	tb.Cleanup(func() {
		k.client.Close(errEnd)
		k.server.Close(errEnd)
	})
	return k
}

// receive returns n bytes.
func receive(tb testing.TB, e *endpoint.Endpoint, n int64) []byte {
	tb.Helper()
	var out []byte
	for int64(len(out)) < n {
		var c chain.Chain
		if err := e.Receive(&c, testkit.Patience()); err != nil {
			tb.Errorf("after %d of %d bytes: %v", len(out), n, err)
			return out
		}
		b, err := c.Bytes()
		check(tb, err)
		out = append(out, b...)
		c.Release()
	}
	return out
}
