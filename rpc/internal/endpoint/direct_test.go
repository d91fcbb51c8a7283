package endpoint_test

import (
	"bytes"
	"context"
	"testing"
	"time"

	"github.com/kvlane/kvlane/internal/sys/hostmem"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/rdma"
	"github.com/kvlane/kvlane/rdma/registry"
	"github.com/kvlane/kvlane/rdma/soft"
	"github.com/kvlane/kvlane/rpc/internal/endpoint"
	"github.com/kvlane/kvlane/rpc/internal/hello"
	"github.com/kvlane/kvlane/rpc/internal/placement"
)

// heldMover moves long transfers when proceed is closed.
type heldMover struct {
	soft.CPUMover
	proceed chan struct{}
}

func (m *heldMover) Move(t *soft.Transfer) {
	for dst := range t.Batch.Extents() {
		if dst.Len >= 1<<20 {
			go func() {
				<-m.proceed
				m.CPUMover.Move(t)
			}()
			return
		}
	}
	m.CPUMover.Move(t)
}

// registeredMemory returns memory with the bytes, which peers may access.
func registeredMemory(t *testing.T, nic *registry.Registry, b []byte) *mem.Region {
	t.Helper()
	r, err := hostmem.AllocRegion(int64(len(b)))
	check(t, err)
	copy(r.Bytes(), b)
	check(t, nic.Register(rdma.MROptions{Access: endpoint.PeerAccess}, r))
	t.Cleanup(func() {
		check(t, nic.Unregister(context.Background(), r))
		check(t, hostmem.FreeRegion(r))
	})
	return r
}

// At most 4 MiB of a transfer are in progress, so that messages do not wait for all of it where a
// NIC serves requests one after another. Messages go on meanwhile.
func TestTransfersAreBounded(t *testing.T) {
	const n, window = 16 << 20, 4 << 20
	m := &heldMover{proceed: make(chan struct{})}
	a, b := pair(t, soft.Options{Mover: m}, 8)
	a.options.Direct, b.options.Direct = true, true
	k := connect(t, a, b, hello.V3)
	want := random(1, n)
	source, to := registeredMemory(t, a.nic, want), registeredMemory(t, b.nic, make([]byte, n))
	held, err := a.nic.Acquire(mem.All(source), endpoint.PeerAccess)
	check(t, err)
	defer held.Release()
	remote := placement.Memory{Ranges: []placement.Range{{Addr: held.Addr(mem.All(source)), Bytes: n, Key: held.Info().RKey}}}
	done := make(chan error, 1)
	go func() { done <- k.server.Transfer(t.Context(), rdma.WRRDMARead, []mem.Extent{mem.All(to)}, &remote) }()
	for k.server.Stats().PlacedBytes == 0 {
		time.Sleep(time.Millisecond)
	}
	for range 10 {
		check(t, k.client.Send([]endpoint.Piece{{Bytes: []byte("hello")}}))
		if got := receive(t, k.server, 5); string(got) != "hello" {
			t.Errorf("%q", got)
		}
		time.Sleep(5 * time.Millisecond)
	}
	if got := k.server.Stats().PlacedBytes; got > window {
		t.Errorf("%d bytes are in progress", got)
	}
	close(m.proceed)
	check(t, <-done)
	if !bytes.Equal(to.Bytes(), want) || k.server.Stats().PlacedBytes != n {
		t.Errorf("the bytes differ, or %+v", k.server.Stats())
	}
}
