package rpc

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/rdma"
	"github.com/kvlane/kvlane/rdma/registry"
	"github.com/kvlane/kvlane/rpc/internal/endpoint"
	"github.com/kvlane/kvlane/rpc/internal/frame"
	"github.com/kvlane/kvlane/rpc/internal/pb"
	"github.com/kvlane/kvlane/rpc/internal/placement"
)

// PlacementAccess are the rights with which the memory of WithSource and WithDestination must be
// registered with the NIC of RDMAOptions. Servers of such calls can access all memory that has
// them.
const PlacementAccess = endpoint.PeerAccess

// Memory is a sequence of bytes that the other side of a call reads or writes directly: extents one
// after another, or pages of a paged KV cache. The bytes of a page in all planes come before those
// of the next page. SlotOff of the planes is not used.
type Memory struct {
	Extents []mem.Extent
	Planes  []mem.Plane // used if Extents is nil
	Pages   []uint32
}

// WithSource lets the server read memory during the call, with Call.ReadSource. It is not part of
// the body, and must not change until the call has returned. The call fails with BadRequest and
// ErrNotSupported on a connection without direct placement.
func WithSource(m Memory) CallOption { return func(o *callOptions) { o.source = &m } }

// WithDestination lets the server write memory during the call, with Call.WriteDestination. The
// written bytes are visible to the CPU and to devices when the call has returned. No byte is
// written after the call has returned, also if it was cancelled. Otherwise it is like WithSource.
func WithDestination(m Memory) CallOption { return func(o *callOptions) { o.destination = &m } }

// hold returns the form in which a peer gets m, and references to its registered memory.
func (m *Memory) hold(nic *registry.Registry) (out placement.Memory, held []*registry.Memory, err error) {
	defer func() {
		if err != nil {
			releaseAll(held)
		}
	}()
	add := func(e mem.Extent, bytes, stride int64) error {
		if err := e.Validate(); err != nil {
			return err
		}
		r, err := nic.Acquire(e, PlacementAccess)
		if err != nil {
			return err
		}
		held = append(held, r)
		out.Ranges = append(out.Ranges, placement.Range{Addr: r.Addr(e), Bytes: uint64(bytes), Key: r.Info().RKey, Stride: uint64(stride)})
		return nil
	}
	for _, e := range m.Extents {
		if e.Len == 0 {
			continue
		}
		if err = add(e, e.Len, 0); err != nil {
			return out, held, err
		}
	}
	if m.Extents == nil && len(m.Planes) > 0 && len(m.Pages) > 0 {
		out.Pages = m.Pages
		last := int64(slices.Max(m.Pages))
		for _, p := range m.Planes {
			if p.Stride < 0 || p.Bytes <= 0 || last > (1<<62)/max(p.Stride, 1) {
				return out, held, fmt.Errorf("place pages of %d bytes at every %d: %w", p.Bytes, p.Stride, errdefs.ErrInvalid)
			}
			if err = add(mem.Extent{Region: p.Region, Off: p.Base, Len: last*p.Stride + p.Bytes}, p.Bytes, p.Stride); err != nil {
				return out, held, err
			}
		}
	}
	_, err = out.Bytes()
	return out, held, err
}

func releaseAll(held []*registry.Memory) {
	for _, m := range held {
		m.Release()
	}
}

// devices returns the devices whose memory is in m.
func (m *Memory) devices() (list []int) {
	add := func(r *mem.Region) {
		if r.Kind() == mem.KindDevice && !slices.Contains(list, r.Device()) {
			list = append(list, r.Device())
		}
	}
	for _, e := range m.Extents {
		add(e.Region)
	}
	for _, p := range m.Planes {
		add(p.Region)
	}
	return list
}

// offered is the memory that a call of a client offers to the server.
type offered struct {
	t       *rdmaTransport
	held    []*registry.Memory
	devices []int // to which the server may write
}

// offer adds the memory of a call to its meta. It returns nil if the call has none.
func (c *clientConn) offer(o *callOptions, meta *pb.Meta) (*offered, error) {
	if o.source == nil && o.destination == nil {
		return nil, nil
	}
	t, ok := c.out.transport.(*rdmaTransport)
	if !ok || !t.e.Direct() {
		return nil, &Error{BadRequest, "the connection has no direct placement", notSent(errdefs.ErrNotSupported)}
	}
	x := &offered{t: t}
	var m placement.Message
	for _, part := range []struct {
		from *Memory
		to   *placement.Memory
	}{{o.source, &m.Source}, {o.destination, &m.Destination}} {
		if part.from == nil {
			continue
		}
		out, held, err := part.from.hold(t.r.o.NIC)
		if err != nil {
			releaseAll(x.held)
			return nil, &Error{BadRequest, "the memory cannot be offered to the server", notSent(err)}
		}
		*part.to, x.held = out, append(x.held, held...)
	}
	if o.destination != nil {
		x.devices = o.destination.devices()
	}
	meta.ProtoReflect().SetUnknown(m.Append(nil))
	return x, nil
}

// settle ends the offer of a call that ended with err. When it returns, the server does not access
// the memory any more, and its writes are visible.
func (c *clientConn) settle(p *pendingCall, err error) error {
	x := p.offered
	if x == nil {
		return err
	}
	if err != nil {
		c.fence(x.t, p.id)
	}
	releaseAll(x.held)
	for _, d := range x.devices {
		if err == nil {
			err = x.t.r.flush(d)
		}
	}
	return err
}

// fence returns when the server does not access the memory of a call any more: after its answer, or
// after the queue pairs of the connection are closed.
func (c *clientConn) fence(t *rdmaTransport, id int64) {
	p := &pendingCall{id: c.c.lastID.Add(1), done: make(chan struct{}, 1)}
	meta := &pb.Meta{CorrelationId: &p.id}
	meta.ProtoReflect().SetUnknown((&placement.Message{Cancel: id}).Append(nil))
	if c.register(p, false) == nil {
		if c.send(c.c.ctx, meta, new(payload), nil) == nil {
			select {
			case <-p.done:
				if p.err == nil {
					p.release()
					return
				}
			case <-time.After(t.r.o.Stall):
				c.withdraw(p)
			}
		} else {
			c.withdraw(p)
		}
	}
	t.e.Close(fmt.Errorf("the server did not end a transfer in %v: %w", t.r.o.Stall, errdefs.ErrBusy))
}

// flush makes writes of the NIC visible to a device.
func (r *RDMA) flush(device int) error {
	switch {
	case r.gpu != nil && r.gpu.dev.Info().Index == device:
		return r.gpu.Flush()
	case r.o.Flush != nil:
		return r.o.Flush(device)
	}
	return fmt.Errorf("place data in memory of device %d: RDMAOptions has no Flush: %w", device, errdefs.ErrNotSupported)
}

// access is the access of a server's call to the memory that its client offers.
type access struct {
	t       *rdmaTransport
	message *placement.Message
	ctx     context.Context // ends when the access ends
	cancel  context.CancelFunc

	mu     sync.Mutex
	active sync.WaitGroup // transfers; none begins after ctx has ended
}

// accessOf returns the access of a request, or nil if its client offers nothing. A message that
// cancels has no memory.
func (c *serverConn) accessOf(meta *pb.Meta) (*access, error) {
	t, ok := c.out.transport.(*rdmaTransport)
	if !ok || !t.e.Direct() {
		return nil, nil
	}
	m, err := placement.Decode(meta.ProtoReflect().GetUnknown())
	if m == nil || err != nil {
		return nil, err
	}
	a := &access{t: t, message: m}
	a.ctx, a.cancel = context.WithCancel(c.ctx)
	return a, nil
}

// begin registers the access of a call, so that its client can end it.
func (c *serverConn) beginAccess(id int64, a *access) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.accesses == nil {
		c.accesses = make(map[int64]*access)
	}
	c.accesses[id] = a
}

// endAccess ends the access of a call, and waits for its transfers.
func (c *serverConn) endAccess(id int64, a *access) {
	if a == nil {
		return
	}
	a.end()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.accesses[id] == a {
		delete(c.accesses, id)
	}
}

func (a *access) end() {
	a.mu.Lock()
	a.cancel()
	a.mu.Unlock()
	a.active.Wait()
}

// answerFence ends the access of a call, and answers when no byte moves any more.
func (c *serverConn) answerFence(id, cancel int64) {
	c.mu.Lock()
	a := c.accesses[cancel]
	c.mu.Unlock()
	if a != nil {
		a.end()
	}
	o, err := newOutput(c.out.transport, frame.Message, &pb.Meta{CorrelationId: &id, Response: &pb.Response{ErrorCode: proto.Int32(0)}}, nil, nil)
	if err == nil {
		_ = c.out.write(o) // its error ends the connection, which the reader notices
	}
}

// transfer moves bytes between local memory and memory of the client.
func (a *access) transfer(ctx context.Context, op rdma.WROpcode, local []mem.Extent) error {
	if a == nil {
		return Errorf(BadRequest, "the client offers no memory")
	}
	remote := &a.message.Destination
	if op == rdma.WRRDMARead {
		remote = &a.message.Source
	}
	if len(remote.Ranges) == 0 {
		return Errorf(BadRequest, "the client offers no memory")
	}
	a.mu.Lock()
	if a.ctx.Err() != nil {
		a.mu.Unlock()
		return Errorf(Canceled, "the call has ended")
	}
	a.active.Add(1)
	a.mu.Unlock()
	defer a.active.Done()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := context.AfterFunc(a.ctx, func() { cancel(Errorf(Canceled, "the call has ended")) })
	defer stop()
	err := a.t.e.Transfer(ctx, op, local, remote)
	if err == nil && op == rdma.WRRDMARead {
		for _, d := range (&Memory{Extents: local}).devices() {
			err = errors.Join(err, a.t.r.flush(d))
		}
	}
	return err
}

// SourceBytes and DestinationBytes return the length of the memory that the client offers with
// WithSource and WithDestination, or zero.
func (c *Call) SourceBytes() int64 {
	if c.access == nil {
		return 0
	}
	n, _ := c.access.message.Source.Bytes() // it was decoded
	return n
}

// DestinationBytes is documented at SourceBytes.
func (c *Call) DestinationBytes() int64 {
	if c.access == nil {
		return 0
	}
	n, _ := c.access.message.Destination.Bytes() // it was decoded
	return n
}

// ReadSource reads the client's source into memory that is registered with the NIC, of SourceBytes
// in total. The bytes are visible to the CPU and to devices when it returns. After any return no
// byte moves any more. It returns BadRequest if the client offers no source, Canceled if the client has
// ended the call, ErrInvalid for another length, and the errors of the registry and the connection.
func (c *Call) ReadSource(ctx context.Context, dst []mem.Extent) error {
	return c.access.transfer(ctx, rdma.WRRDMARead, dst)
}

// WriteDestination writes memory that is registered with the NIC, of DestinationBytes in total, to
// the client's destination. Otherwise it is like ReadSource.
func (c *Call) WriteDestination(ctx context.Context, src []mem.Extent) error {
	return c.access.transfer(ctx, rdma.WRRDMAWrite, src)
}
