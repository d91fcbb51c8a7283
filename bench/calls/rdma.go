package calls

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/kvlane/kvlane/bench/rounds"
	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/rdma"
	"github.com/kvlane/kvlane/rdma/registry"
	"github.com/kvlane/kvlane/rpc"
	"github.com/kvlane/kvlane/rpc/chain"
	"github.com/kvlane/kvlane/rpc/echo"
)

// Names of subjects by RDMA.
const (
	RDMA   = "rdma"     // host memory
	GPU    = "rdma-gpu" // attachments sent from device memory and received into blocks of it
	Direct = "direct"   // attachments placed directly from and to device memory
)

// Fabric has the NICs of subjects by RDMA, one for each side, in trust domains of their own, and a
// device whose memory they reach. Flush makes writes of the client's NIC visible to the device; it
// may be nil.
type Fabric struct {
	Client, Server *registry.Registry
	Device         device.Device
	Flush          func(device int) error
	OnDevice       bool // measure GPU and Direct too
	// Port selects the port of both NICs.
	Port rdma.PortOptions
	// Beside is the length of transfers. Calls without an attachment are also measured beside them:
	// GPU, BesideBlocks and BesideDirect. Zero: they are not.
	Beside int64
}

// Openers returns the subjects by RDMA. GPU and Direct measure attachments.
func (f *Fabric) Openers() []Opener {
	open := func(name string) Opener {
		return func(ctx context.Context, l Load) (Subject, error) {
			if name != RDMA && (l.Attachment == 0 || !f.OnDevice) {
				return nil, nil
			}
			c := &remoteClient{f: f, name: name, load: l, want: Pattern(l.Body + l.Attachment)}
			if err := c.open(ctx); err != nil {
				return nil, errors.Join(err, c.Close())
			}
			return c, nil
		}
	}
	beside := func(name string) Opener {
		return func(ctx context.Context, l Load) (Subject, error) { return f.openBeside(ctx, name, l) }
	}
	return []Opener{open(RDMA), open(GPU), open(Direct), beside(GPU), beside(BesideBlocks), beside(BesideDirect)}
}

// remoteClient is a client of a server in this process, by RDMA.
type remoteClient struct {
	f      *Fabric
	name   string
	load   Load
	want   []byte
	client *rpc.Client
	stub   *echo.EchoServiceStub
	places chan place // of the callers
	closes []func() error
}

// place is the memory of one caller.
type place struct{ source, middle, destination, staging *mem.Region }

func (c *remoteClient) onDevice() bool { return c.name != RDMA }

func (c *remoteClient) open(ctx context.Context) error {
	var sides [2]*rpc.RDMA
	for i, nic := range []*registry.Registry{c.f.Server, c.f.Client} {
		o := rpc.RDMAOptions{
			NIC: nic, Port: c.f.Port, Memory: mem.ArenaHooks{Alloc: c.f.Device.AllocHost, Free: c.f.Device.Free}, HelloVersion: 3, Direct: true,
			Flush: func(index int) error {
				if c.f.Flush == nil {
					return nil
				}
				return c.f.Flush(index)
			},
		}
		if c.onDevice() {
			o.GPU = &rpc.GPUOptions{Device: c.f.Device, RegionBytes: 256 << 20, MaxRegions: 16}
		}
		r, err := rpc.OpenRDMA(o)
		if err != nil {
			return err
		}
		sides[i] = r
		c.closes = append(c.closes, func() error { return r.Close(context.Background()) })
	}
	s, err := rpc.NewServer(rpc.ServerOptions{RDMA: sides[0]})
	if err != nil {
		return err
	}
	served := make(chan error, 1)
	if err := s.Register(echo.NewEchoService(placing{c})); err != nil {
		return err
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	go func() { served <- s.Serve(listener) }()
	c.closes = append(c.closes, func() error { return errors.Join(s.Close(), <-served) })
	c.client, err = rpc.NewClient(listener.Addr().String(), rpc.ClientOptions{RDMA: sides[1]})
	if err != nil {
		return err
	}
	c.closes = append(c.closes, c.client.Close)
	c.stub = echo.NewEchoServiceStub(c.client)
	c.places = make(chan place, c.load.Callers)
	for range c.load.Callers {
		p, err := c.newPlace()
		if err != nil {
			return err
		}
		c.places <- p
	}
	if err := c.client.Connect(ctx); err != nil {
		return err
	}
	if sides[1].Stats().Connected == 0 {
		return fmt.Errorf("measure %s: the connection uses no RDMA: %w", c.name, errdefs.ErrNotSupported)
	}
	return nil
}

// newPlace allocates and registers the memory of a caller, with the bytes of a request.
func (c *remoteClient) newPlace() (p place, err error) {
	if !c.onDevice() {
		return p, nil
	}
	alloc := func(nic *registry.Registry) *mem.Region {
		if err != nil {
			return nil
		}
		var r *mem.Region
		if r, err = c.f.Device.Alloc(c.load.Attachment, device.AllocOptions{}); err != nil {
			return nil
		}
		err = nic.Register(rdma.MROptions{Access: rpc.PlacementAccess}, r)
		registered := err == nil
		c.closes = append(c.closes, func() error {
			if registered {
				if err := nic.Unregister(context.Background(), r); err != nil {
					return err
				}
			}
			return c.f.Device.Free(r)
		})
		return r
	}
	p.source, p.destination, p.middle = alloc(c.f.Client), alloc(c.f.Client), alloc(c.f.Server)
	if err == nil {
		p.staging, err = c.f.Device.AllocHost(c.load.Attachment)
	}
	if err != nil {
		return p, err
	}
	c.closes = append(c.closes, func() error { return c.f.Device.Free(p.staging) })
	copy(p.staging.Bytes(), c.want)
	return p, c.copy(p.source, p.staging)
}

// copy copies a region and waits.
func (c *remoteClient) copy(dst, src *mem.Region) error {
	q, err := c.f.Device.OpenQueue(device.QueueOptions{})
	if err != nil {
		return err
	}
	err = q.Copy(mem.All(dst), mem.All(src))
	return errors.Join(err, q.Close(context.Background())) // it waits until the queue is idle
}

// placing is the service of a remoteClient.
type placing struct{ c *remoteClient }

// Echo returns the attachment, or moves the client's source to its destination.
func (s placing) Echo(ctx context.Context, in *echo.EchoRequest) (*echo.EchoResponse, error) {
	call := rpc.FromContext(ctx)
	if call.DestinationBytes() == 0 {
		return service{}.Echo(ctx, in)
	}
	p := <-s.c.places
	defer func() { s.c.places <- p }()
	x := []mem.Extent{mem.All(p.middle)}
	if err := call.ReadSource(ctx, x); err != nil {
		return nil, err
	}
	return &echo.EchoResponse{Message: in.Message}, call.WriteDestination(ctx, x)
}

// Name returns the name of the subject.
func (c *remoteClient) Name() string { return c.name }

// Run implements rounds.Subject. All bytes of a caller's first response are compared.
func (c *remoteClient) Run(d time.Duration, t *rounds.Times) error {
	places := make([]place, c.load.Callers)
	for i := range places {
		places[i] = <-c.places
		c.places <- places[i]
	}
	next := make(chan place, len(places))
	for _, p := range places {
		next <- p
	}
	return Echo(c.load.Callers, d, 10*time.Second, t, func(ctx context.Context, compare bool) error {
		p := <-next
		defer func() { next <- p }()
		return c.call(ctx, p, compare)
	})
}

func (c *remoteClient) call(ctx context.Context, p place, compare bool) error {
	message := ""
	if c.load.Attachment == 0 {
		message = string(c.want)
	}
	in := &echo.EchoRequest{Message: &message}
	if c.name == Direct && c.load.Attachment > 0 {
		_, err := c.stub.Echo(ctx, in, rpc.WithSource(whole(p.source)), rpc.WithDestination(whole(p.destination)))
		if err != nil || !compare {
			return err
		}
		clear(p.staging.Bytes())
		if err := c.copy(p.staging, p.destination); err != nil {
			return err
		}
		return Check(len(c.want), c.load.Attachment, bytes.Equal(p.staging.Bytes(), c.want))
	}
	attachment := chain.OfBytes(nil)
	switch {
	case c.name == GPU && c.load.Attachment > 0:
		b, err := chain.NewRegistered(mem.All(p.source), nil)
		if err != nil {
			return err
		}
		attachment.AppendBlock(b, b.Len())
	case c.load.Attachment > 0:
		attachment = chain.OfBytes(c.want)
	}
	var got chain.Chain
	defer got.Release()
	out, err := c.stub.Echo(ctx, in, rpc.WithAttachment(attachment), rpc.ReceiveAttachment(&got))
	if err != nil {
		return err
	}
	n, equal := int64(len(out.GetMessage()))+got.Len(), true
	if compare {
		if equal, err = c.equal(out, &got, p); err != nil {
			return err
		}
	}
	return Check(int(n), c.load.Body+c.load.Attachment, equal)
}

// equal reports whether a response has the bytes of its request.
func (c *remoteClient) equal(out *echo.EchoResponse, got *chain.Chain, p place) (bool, error) {
	if c.load.Attachment == 0 {
		return out.GetMessage() == string(c.want), nil
	}
	if !got.OnDevice() {
		b, err := got.Bytes()
		return bytes.Equal(b, c.want), err
	}
	clear(p.staging.Bytes())
	n, err := got.CopyFromGPU(context.Background(), mem.All(p.staging), got.Len(), 0)
	return n == got.Len() && bytes.Equal(p.staging.Bytes(), c.want), err
}

func whole(r *mem.Region) rpc.Memory { return rpc.Memory{Extents: []mem.Extent{mem.All(r)}} }

// Close ends client and server, and frees the memory.
func (c *remoteClient) Close() error {
	var errs []error
	for i := len(c.closes) - 1; i >= 0; i-- {
		errs = append(errs, c.closes[i]())
	}
	c.closes = nil
	return errors.Join(errs...)
}
