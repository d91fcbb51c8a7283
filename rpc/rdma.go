package rpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/rdma"
	"github.com/kvlane/kvlane/rdma/registry"
	"github.com/kvlane/kvlane/rpc/chain"
	"github.com/kvlane/kvlane/rpc/internal/endpoint"
	"github.com/kvlane/kvlane/rpc/internal/frame"
	"github.com/kvlane/kvlane/rpc/internal/hello"
)

// RDMAOptions are the options of RDMA. NIC and Memory are required. Zero values are the defaults.
type RDMAOptions struct {
	// NIC is the NIC of the connections, in a trust domain of its own. Memory that is registered
	// with it is sent without a copy. The caller closes it after the RDMA.
	NIC *registry.Registry
	// Port restricts the choice of the NIC's port.
	Port rdma.PortOptions
	// Memory allocates host memory: Alloc and Free. It must be pinned if a device receives too.
	Memory mem.ArenaHooks
	// BlockBytes is the length of a receive. Default: 64 KiB.
	BlockBytes int64
	// RegionBytes and MaxRegions bound the memory for received bytes, and that for sent bytes.
	// Defaults: 64 MiB and 16.
	RegionBytes int64
	MaxRegions  int
	// Queue is the number of receives that each connection posts. Default: 128.
	Queue int
	// HelloVersion is the version of the handshake of clients, 2 or 3. Default: 2. Servers of brpc
	// that know only version 2 close the connection after version 3.
	HelloVersion int
	// Direct lets servers and clients of kvlane place data directly into memory of each other:
	// WithSource and WithDestination. Connections of clients then need HelloVersion 3.
	Direct bool
	// Flush makes writes of the NIC visible to a device, by its index. It is required for placement
	// into memory of other devices than that of GPU.
	Flush func(device int) error
	// Polling means that each connection polls for completions. Default: it waits for events.
	Polling bool
	// Stall bounds a handshake, and the time in which a peer must post receives. Default: 30 s.
	Stall time.Duration
	// GPU receives into device memory. nil: connections receive into host memory.
	GPU *GPUOptions
}

// RDMA has the memory of connections by RDMA. Servers and clients share it. It is safe for
// concurrent use.
type RDMA struct {
	o             RDMAOptions
	endpoint      endpoint.Options
	receive, send *mem.Arena
	gpu           *gpu // nil: connections receive into host memory

	connected, refused atomic.Int64
}

// RDMAStats are the counters of an RDMA since OpenRDMA.
type RDMAStats struct {
	Connected int64 // connections that used RDMA
	Refused   int64 // connections that used TCP after a handshake
	// Receive, Send and Device describe the memory for received bytes, for sent bytes that are not
	// registered, and for bytes received into device memory.
	Receive, Send, Device mem.ArenaStats
}

// OpenRDMA prepares connections by RDMA. With GPU it allocates and registers a region of device
// memory, which stays. It returns ErrInvalid for wrong options, and the errors of
// rdma.FindPort and of the device.
func OpenRDMA(o RDMAOptions) (*RDMA, error) {
	setDefault(&o.BlockBytes, 64<<10)
	setDefault(&o.RegionBytes, 64<<20)
	setDefault(&o.MaxRegions, 16)
	setDefault(&o.Queue, endpoint.DefaultQueue)
	setDefault(&o.HelloVersion, int(hello.V2))
	setDefault(&o.Stall, DefaultStall)
	switch {
	case o.NIC == nil:
		return nil, fmt.Errorf("open rdma without a NIC: %w", errdefs.ErrInvalid)
	case o.BlockBytes < hello.MinBlockBytes || o.Queue < hello.MinQueue || o.Queue > 4096 || o.Stall < 0:
		return nil, fmt.Errorf("open rdma with %d blocks of %d bytes: %w", o.Queue, o.BlockBytes, errdefs.ErrInvalid)
	case o.HelloVersion != int(hello.V2) && o.HelloVersion != int(hello.V3):
		return nil, fmt.Errorf("open rdma with hello version %d: %w", o.HelloVersion, errdefs.ErrInvalid)
	}
	r := &RDMA{o: o}
	if err := r.open(); err != nil {
		return nil, errors.Join(fmt.Errorf("open rdma: %w", err), r.Close(context.Background()))
	}
	return r, nil
}

func (r *RDMA) open() (err error) {
	o := &r.o
	port, err := rdma.FindPort(o.NIC.Device(), o.Port)
	if err != nil {
		return err
	}
	// Nothing is found by polling this memory: data are read after their completion.
	const access = rdma.AccessLocalWrite | rdma.AccessRelaxedOrdering
	options := mem.ArenaOptions{
		BlockBytes: o.BlockBytes, RegionBytes: max(o.RegionBytes, o.BlockBytes), MaxRegions: o.MaxRegions,
		Hooks: registered(o.NIC, o.Memory, access),
	}
	if r.receive, err = mem.NewArena(options); err != nil {
		return err
	}
	if r.send, err = mem.NewArena(options); err != nil {
		return err
	}
	r.endpoint = endpoint.Options{
		NIC: o.NIC, Port: port, Receive: r.receive, Send: r.send, Wrap: chain.NewRegistered, Queue: o.Queue, Direct: o.Direct, Polling: o.Polling, Stall: o.Stall,
	}
	if o.GPU != nil {
		if r.gpu, err = openGPU(o); err != nil {
			return err
		}
		r.endpoint.Receive, r.endpoint.Wrap, r.endpoint.Ready = r.gpu.blocks, r.gpu.wrap, r.gpu.ready
	}
	return nil
}

// registered returns hooks that register the memory of h with a NIC.
func registered(nic *registry.Registry, h mem.ArenaHooks, access rdma.Access) mem.ArenaHooks {
	h.Register = func(r *mem.Region) (uint32, error) {
		if err := nic.Register(rdma.MROptions{Access: access}, r); err != nil {
			return 0, err
		}
		m, err := nic.Acquire(mem.All(r), access)
		if err != nil {
			return 0, err
		}
		defer m.Release() // the arena keeps it registered
		return m.Info().LKey, nil
	}
	h.Deregister = func(ctx context.Context, r *mem.Region) error {
		return registry.Unregister(ctx, []*registry.Registry{nic}, r)
	}
	return h
}

// Stats returns the counters.
func (r *RDMA) Stats() RDMAStats {
	s := RDMAStats{Connected: r.connected.Load(), Refused: r.refused.Load(), Receive: r.receive.Stats(), Send: r.send.Stats()}
	if r.gpu != nil {
		s.Device = r.gpu.blocks.Stats()
	}
	return s
}

// Close frees the memory. Servers and clients must be closed, and chains released. It returns
// ErrBusy while memory is in use, and may be called again.
func (r *RDMA) Close(ctx context.Context) error {
	var errs []error
	for _, a := range []*mem.Arena{r.receive, r.send} {
		if a != nil {
			errs = append(errs, a.Close(ctx))
		}
	}
	if r.gpu != nil {
		errs = append(errs, r.gpu.close(ctx))
	}
	return errors.Join(errs...)
}

// transport returns the transport of an endpoint, or nil after a refusal.
func (r *RDMA) transport(e *endpoint.Endpoint, refusal error) transport {
	if refusal != nil {
		r.refused.Add(1)
		return nil
	}
	r.connected.Add(1)
	return &rdmaTransport{r: r, e: e}
}

// receiveCode returns the code of a message that could not be received, on a connection that can
// continue: RDMAMemory or RDMAFailed. Otherwise it returns OK.
func receiveCode(err error) Code {
	if err == nil { // without an allocation
		return OK
	}
	switch e := (*Error)(nil); {
	case errors.Is(err, endpoint.ErrHostMemory):
		return RDMAMemory
	case errors.As(err, &e) && e.Code == RDMAFailed:
		return RDMAFailed
	}
	return OK
}

// negotiate offers RDMA to a server. It returns nil if the connection continues by TCP.
func (c *Client) negotiate(ctx context.Context, conn net.Conn) (transport, error) {
	r := c.o.RDMA
	if r == nil || c.o.TLS != nil || c.network != "tcp" || time.Now().UnixNano() < c.plainUntil.Load() {
		return nil, nil
	}
	e, refusal, err := endpoint.Dial(ctx, conn, hello.Version(r.o.HelloVersion), &r.endpoint)
	if err != nil {
		return nil, err
	}
	if refusal != nil {
		c.plainUntil.Store(time.Now().Add(plainTime).UnixNano())
	}
	return r.transport(e, refusal), nil
}

// plainTime is the time after a refusal in which a client uses TCP without a handshake. brpc may
// close a connection whose first request follows the refusal at once.
const plainTime = time.Minute

// negotiate answers the hello of a client, if its first bytes are one. It returns the connection to
// read from, and nil as the transport if the client uses TCP.
func (s *Server) negotiate(ctx context.Context, conn net.Conn) (net.Conn, transport, error) {
	if s.o.TLS != nil {
		return conn, nil, nil
	}
	b, err := readMagic(conn, s.o.Stall)
	if err != nil {
		return nil, nil, err
	}
	read := &prefixedConn{conn, b}
	if len(b) < hello.MagicBytes || !hello.Is(b) {
		return read, nil, nil
	}
	var o *endpoint.Options
	r := s.o.RDMA
	if r != nil {
		o = &r.endpoint
	}
	e, refusal, err := endpoint.Accept(ctx, read, o, s.o.Stall)
	switch {
	case err != nil:
		return nil, nil, err
	case r == nil:
		return conn, nil, nil
	}
	return conn, r.transport(e, refusal), nil
}

// readMagic reads the first bytes of a connection until they cannot be those of a hello, or all
// have arrived. It waits for the first byte without a limit.
func readMagic(conn net.Conn, stall time.Duration) ([]byte, error) {
	b, n := make([]byte, hello.MagicBytes), 0
	defer func() { _ = conn.SetReadDeadline(time.Time{}) }() // fails if closed, as reads do
	for n < len(b) && (strings.HasPrefix("RDMA", string(b[:n])) || strings.HasPrefix("RDM3", string(b[:n]))) {
		k, err := conn.Read(b[n:])
		if n += k; err != nil {
			if n > 0 && errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return nil, err
		}
		_ = conn.SetReadDeadline(time.Now().Add(stall)) // likewise
	}
	return b[:n], nil
}

// prefixedConn is a connection of which the first bytes were read.
type prefixedConn struct {
	net.Conn
	prefix []byte
}

// Read reads the prefix, and then the connection.
func (c *prefixedConn) Read(p []byte) (int, error) {
	if len(c.prefix) > 0 {
		n := copy(p, c.prefix)
		c.prefix = c.prefix[n:]
		return n, nil
	}
	return c.Conn.Read(p)
}

// rdmaTransport carries frames by an endpoint.
type rdmaTransport struct {
	r  *RDMA
	e  *endpoint.Endpoint
	in interface{ Close() } // the source; nil before

	mu   sync.Mutex // held by send
	list []endpoint.Piece
}

func (t *rdmaTransport) source(l frame.Limits) frameSource {
	if t.r.gpu != nil {
		s := endpoint.NewDeviceReader(t.e, l, t.r.gpu, t.r.gpu.heads, t.r.receive)
		t.in = s
		return s
	}
	s := endpoint.NewReader(t.e, l)
	t.in = s
	return s
}

func (t *rdmaTransport) check(attachment *chain.Chain) error {
	for b, e := range attachment.Pieces() {
		if b == nil && !t.r.o.NIC.Covers(e, 0) {
			return fmt.Errorf("attach memory that NIC %s does not reach: the %s is not registered: %w", t.r.o.NIC.Name(), e.Region, errdefs.ErrNotSupported)
		}
	}
	return nil
}

func (t *rdmaTransport) send(batch []output) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	list := t.list[:0]
	for i := range batch {
		o := batch[i]
		list = append(list, endpoint.Piece{Bytes: o.head})
		if len(o.message) > 0 {
			list = append(list, endpoint.Piece{Bytes: o.message})
		}
		for b, e := range o.attachment.Pieces() {
			p := endpoint.Piece{Bytes: b, Extent: e}
			if e.Region != nil && (b == nil || t.r.o.NIC.Covers(e, 0)) {
				p.Bytes = nil
			}
			list = append(list, p)
		}
		list[len(list)-1].Done = o.drop
	}
	t.list = list
	err := t.e.Send(list)
	clear(list)
	return err
}

func (t *rdmaTransport) close(err error) {
	t.e.Fail(err)
	t.mu.Lock() // a send in progress returns
	defer t.mu.Unlock()
	t.e.Close(err)
	if t.in != nil {
		t.in.Close()
	}
}
