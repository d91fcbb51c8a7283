package server

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"testing"

	"github.com/kvlane/kvlane/blockio"
	"github.com/kvlane/kvlane/blockio/gateway"
	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/internal/auth"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/rdma"
	"github.com/kvlane/kvlane/rdma/registry"
	"github.com/kvlane/kvlane/rdma/soft"
)

// nics returns the software NIC for two trust domains, and pinned memory.
func nics(t *testing.T) (client, server *registry.Registry, memory mem.BufferHooks) {
	t.Helper()
	p, err := soft.New(soft.Options{})
	must(t, err)
	t.Cleanup(func() { must(t, p.Close()) })
	dev, err := sim.Open(sim.Options{})
	must(t, err)
	t.Cleanup(func() { must(t, dev.Close()) })
	devices := registry.NewDevices(p)
	open := func() *registry.Registry {
		set := devices.NewSet(registry.Options{})
		t.Cleanup(func() { must(t, set.Close()) })
		g, err := set.NIC("soft0")
		must(t, err)
		return g
	}
	return open(), open(), mem.BufferHooks{Alloc: dev.AllocHost, Free: dev.Free}
}

// A client with credentials uses RDMA, and a client without credentials does not.
func TestRDMANeedsAnAuthenticatedConnection(t *testing.T) {
	own, servers, memory := nics(t)
	g, err := gateway.New(gateway.Options{NIC: servers, Kind: mem.KindHostPinned, Memory: memory})
	must(t, err)
	t.Cleanup(func() { must(t, g.Close(context.Background())) })
	a, cert, token := tokenServer(t)
	use := func(r *rig, o blockio.ClientOptions, remote bool) {
		t.Helper()
		o.RDMA = &blockio.RDMAOptions{NIC: own, Memory: memory}
		c := r.client(t, o)
		for i, f := range r.formats {
			m, pieces := image(t, f, i, 4096)
			must(t, own.Register(rdma.MROptions{Access: blockio.PeerAccess}, m.Region))
			want := bytes.Clone(m.Bytes())
			must(t, store(t, c, pieces))
			clear(m.Bytes())
			errs := make([]error, len(pieces))
			c.Retrieve(t.Context(), pieces, errs)
			must(t, errors.Join(errs...))
			if !bytes.Equal(m.Bytes(), want) {
				t.Errorf("%s: the bytes differ", f.Identity)
			}
			must(t, registry.Unregister(t.Context(), []*registry.Registry{own}, m.Region))
		}
		if s := c.Stats(); (s.Remote == s.Batches) != remote || (s.RemoteRefused == 0) != remote {
			t.Errorf("statistics %+v, with RDMA: %t", s, remote)
		}
	}
	r := newRig(t, Options{Auth: a, RDMA: g}, 64)
	client, err := auth.NewClient(auth.ClientOptions{CAFile: cert, TokenFile: token(tokenA)})
	must(t, err)
	dial := func(ctx context.Context) (net.Conn, error) {
		return (&tls.Dialer{Config: client.TLS(r.addr)}).DialContext(ctx, "tcp", r.addr)
	}
	use(r, blockio.ClientOptions{Token: client.Token(), Dial: dial}, true)
	_, err = r.client(t, blockio.ClientOptions{Token: []byte(tokenA + "x"), Dial: dial}).Stat(t.Context())
	wantErr(t, "a wrong token", err, blockio.ErrDenied)
	use(newRig(t, Options{RDMA: g}, 64), blockio.ClientOptions{}, false)
	use(newRig(t, Options{}, 64), blockio.ClientOptions{}, false)
	if s := g.Stats(); s.Attached != 1 || s.Denied != 1 || s.Requests == 0 || s.Refused != 0 {
		t.Errorf("statistics of the gateway %+v", s)
	}
}
