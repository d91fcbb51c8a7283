package blocks

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/kvlane/kvlane/bench/rounds"
	"github.com/kvlane/kvlane/blockio"
	"github.com/kvlane/kvlane/blockio/gateway"
	"github.com/kvlane/kvlane/blockio/server"
	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/auth"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/rdma"
	"github.com/kvlane/kvlane/rdma/registry"
	"github.com/kvlane/kvlane/stream"
)

// Fabric has the NICs and the device of the subjects RDMA and Device. Its objects must stay open
// during Run.
type Fabric struct {
	Device device.Device
	Copies stream.Stream // copies between the device and its pinned memory
	Client NIC
	Server NIC
	// Flush makes writes of the client's NIC visible to the device. Nil: they are visible.
	Flush func(device int) error
}

// NIC is a NIC as a trust domain of its own, with the options of its connections.
type NIC struct {
	Registry *registry.Registry
	Connect  rdma.ConnectOptions
}

// remote is a client that uses RDMA, with its server and memory. The server has the blocks of the
// rig.
type remote struct {
	*rig
	f       *Fabric
	gateway *gateway.Gateway
	server  *server.Server
	client  *blockio.Client
	memory  []*mem.Region // registered with the client's NIC
	staging *mem.Region   // pinned copies of the pieces in device memory
}

// openRemote starts a server with RDMA for the blocks of r and connects a client.
func openRemote(ctx context.Context, r *rig, f *Fabric) (_ *remote, err error) {
	m := &remote{rig: r, f: f}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("prepare RDMA: %w", err), m.close(ctx))
		}
	}()
	buffers := mem.BufferHooks{Alloc: f.Device.AllocHost, Free: f.Device.Free}
	o := gateway.Options{NIC: f.Server.Registry, Connect: f.Server.Connect, Kind: mem.KindHostPinned, Memory: buffers, SlotBytes: blockio.MinDeviceBytes}
	if m.gateway, err = gateway.New(o); err != nil {
		return nil, err
	}
	a, err := auth.NewServer(auth.ServerOptions{})
	if err != nil {
		return nil, err
	}
	if m.server, err = server.New(server.Options{Host: r.host, Auth: a, RDMA: m.gateway, LoopbackRDMA: true}); err != nil {
		return nil, err
	}
	addr, err := m.server.Listen(ctx, "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	m.client, err = blockio.NewClient(blockio.ClientOptions{
		Dial: func(ctx context.Context) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", addr.String())
		},
		Formats: []blockio.Format{{Identity: r.format.Identity, ShardBytes: r.format.Layout.ShardSizes()}}, Retries: -1,
		RDMA: &blockio.RDMAOptions{NIC: f.Client.Registry, Connect: f.Client.Connect, Memory: buffers, Flush: m.flush, Sum: m.sum},
	})
	return m, err
}

func (m *remote) flush(index int) error {
	if m.f.Flush == nil {
		return nil
	}
	return m.f.Flush(index)
}

// sum copies a piece to pinned memory at the same offset and returns its checksum.
func (m *remote) sum(e mem.Extent) (uint64, error) {
	b, err := m.staged(e)
	return xxh3.Hash(b), err
}

// staged returns the bytes of a piece in device memory, as a copy in pinned memory.
func (m *remote) staged(e mem.Extent) ([]byte, error) {
	to := mem.Extent{Region: m.staging, Off: e.Off, Len: e.Len}
	k, err := m.f.Copies.Submit(context.Background(), &mem.Batch{Dst: []mem.Extent{to}, Src: []mem.Extent{e}})
	if err != nil {
		return nil, err
	}
	return to.Bytes(), k.Wait(context.Background())
}

// subject returns a subject that retrieves pieces to memory of alloc.
func (m *remote) subject(name string, alloc func(bytes int64) (*mem.Region, error)) (*remoteSubject, error) {
	bytes := m.slots[0].Len
	r, err := alloc(int64(m.depth) * bytes)
	if err != nil {
		return nil, err
	}
	m.memory = append(m.memory, r)
	if err := m.f.Client.Registry.Register(rdma.MROptions{Access: blockio.PeerAccess}, r); err != nil {
		return nil, err
	}
	s := &remoteSubject{remote: m, name: name, pieces: m.pieces()}
	for i := range s.pieces {
		s.pieces[i].Mem = mem.Extent{Region: r, Off: int64(i) * bytes, Len: bytes}
	}
	return s, nil
}

// subjects returns the subjects for the pieces of the rig.
func (m *remote) subjects() (all []rounds.Subject, err error) {
	s, err := m.subject(RDMA, m.f.Device.AllocHost)
	if err != nil {
		return nil, err
	}
	all = append(all, s)
	if m.slots[0].Len < blockio.MinDeviceBytes {
		return all, nil
	}
	if m.staging, err = m.f.Device.AllocHost(int64(m.depth) * m.slots[0].Len); err != nil {
		return nil, err
	}
	s, err = m.subject(Device, func(bytes int64) (*mem.Region, error) { return m.f.Device.Alloc(bytes, device.AllocOptions{}) })
	return append(all, s), err
}

// close releases everything.
func (m *remote) close(ctx context.Context) error {
	ctx = context.WithoutCancel(ctx)
	var errs []error
	if m.client != nil {
		errs = append(errs, m.client.Close(ctx))
	}
	if m.server != nil {
		errs = append(errs, m.server.Close(ctx))
	}
	if m.gateway != nil {
		errs = append(errs, m.gateway.Close(ctx))
	}
	for _, r := range m.memory {
		err := registry.Unregister(ctx, []*registry.Registry{m.f.Client.Registry}, r)
		if err == nil { // otherwise the NIC may still access the memory
			err = m.f.Device.Free(r)
		}
		errs = append(errs, err)
	}
	if m.staging != nil {
		errs = append(errs, m.f.Device.Free(m.staging))
	}
	return errors.Join(errs...)
}

// remoteSubject retrieves one piece per call by RDMA.
type remoteSubject struct {
	*remote
	name   string
	pieces []blockio.Piece
}

func (s *remoteSubject) Name() string { return s.name }

func (s *remoteSubject) Run(d time.Duration, t *rounds.Times) error {
	errs := make([]error, s.depth)
	return rounds.Parallel(s.depth, d, t, func(i int, _ bool) error {
		s.client.Retrieve(context.Background(), s.pieces[i:i+1], errs[i:i+1])
		return errs[i]
	})
}

// check compares the pieces with the server's block. Pieces that did not pass by RDMA are an error.
func (s *remoteSubject) check() error {
	if st := s.client.Stats(); st.RemoteMissed+st.RemoteRefused > 0 || st.Remote == 0 {
		return errors.Join(fmt.Errorf("%d requests by RDMA, %d over the socket: %w", st.Remote, st.RemoteMissed, errdefs.ErrNotSupported), st.Refusal)
	}
	return s.same(func(i int) ([]byte, error) {
		if b := s.pieces[i].Mem.Bytes(); b != nil {
			return b, nil
		}
		return s.staged(s.pieces[i].Mem)
	})
}

// same compares retrieved pieces with the server's block.
func (r *rig) same(piece func(i int) ([]byte, error)) error {
	want, err := r.space.Get(key(0))
	if err != nil {
		return err
	}
	defer want.Release()
	for i := range r.slots {
		got, err := piece(i)
		if err != nil {
			return err
		}
		if !bytes.Equal(got, want.Bytes()[r.format.Layout.ShardOff(0):][:r.slots[i].Len]) {
			return fmt.Errorf("retrieved piece %d has other bytes: %w", i, errdefs.ErrCorrupt)
		}
	}
	return nil
}
