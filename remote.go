package kvlane

import (
	"context"
	"errors"
	"fmt"

	"github.com/kvlane/kvlane/blockio"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/gdr"
	"github.com/kvlane/kvlane/internal/autonic"
	"github.com/kvlane/kvlane/internal/unwind"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/rdma"
	"github.com/kvlane/kvlane/rdma/registry"
)

// openRemoteNIC opens a NIC for block servers and registers the cache's memory with it. It returns
// a text that describes the NIC.
func (e *Engine) openRemoteNIC(ctx context.Context) (*blockio.RDMAOptions, string, error) {
	closers := unwind.New()
	o, what, err := e.tryRemoteNIC(autonic.Provider(ctx), &closers)
	if err != nil {
		err = errors.Join(err, closers.Undo(ctx, unwind.Timeout))
	}
	e.closers.Add("NIC of block servers", closers.Close) // of nothing after an error that was undone
	return o, what, err
}

// tryRemoteNIC returns options for a NIC of p, and a text that describes it. If p is nil, the
// configuration selects the provider. Opened objects are added to closers.
func (e *Engine) tryRemoteNIC(p rdma.Provider, closers *unwind.Stack) (*blockio.RDMAOptions, string, error) {
	c := e.cfg.RDMA
	if p == nil && c.Provider == gdr.Soft {
		return nil, "", fmt.Errorf("NICs in software reach no other process: %w", errdefs.ErrNotSupported)
	}
	n, err := gdr.OpenHost(e.dev.Info(), c, p)
	if err != nil {
		return nil, "", err
	}
	closers.Add("NICs", n.Close)
	d, err := n.OpenDomain()
	if err != nil {
		return nil, "", err
	}
	closers.AddPlain("domain", d.Close)
	closers.Add("registration of the cache", func(ctx context.Context) error {
		return registry.Unregister(ctx, []*registry.Registry{d.NIC}, e.pinned)
	})
	if err := d.NIC.Register(rdma.MROptions{Access: blockio.PeerAccess}, e.pinned); err != nil {
		return nil, "", err
	}
	o := &blockio.RDMAOptions{NIC: d.NIC, Connect: d.Connect, Memory: mem.BufferHooks{Alloc: e.dev.AllocHost, Free: e.dev.Free}}
	return o, fmt.Sprintf("NIC %s, %s", d.NIC.Name(), d.Reason), nil
}
