package rdmabench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/rdma"
	"github.com/kvlane/kvlane/rdma/channel"
	"github.com/kvlane/kvlane/rdma/registry"
	"github.com/kvlane/kvlane/stream"
)

// Defaults of ChannelOptions, and how many requests are posted with one doorbell and one completion.
const (
	defaultDepth        = 1024
	defaultRequestBytes = 1 << 20
	chainLength         = 64
)

// ChannelOptions say how a channel is opened. Registry is required.
type ChannelOptions struct {
	// Registry is the NIC. It knows the memory that is copied, and outlives the channel.
	Registry *registry.Registry
	Connect  rdma.ConnectOptions
	// Depth is how many requests are outstanding at most. Default 1024. What the device has less, it is.
	Depth int
}

// Channel copies by a queue pair of a reliable connection that is connected to itself, without a stream: a write for each
// extent to a device, or within one sort of memory, and a read for each to the host. What is copied at once must not overlap.
// It implements bench.Channel. For one goroutine at a time.
type Channel struct {
	link
	reg          *registry.Registry
	requestBytes int64

	memory map[*mem.Region]*handle // held until Close
	recent [2]*handle              // of the last copy's destination and source

	wrs  []rdma.SendWR // the chain that is built
	sges []rdma.SGE
}

// handle is a region as requests name it.
type handle struct {
	region     *mem.Region
	memory     *registry.Memory
	base       uint64 // address of the first byte
	lkey, rkey uint32
}

// OpenChannel makes a channel with a queue pair and a completion queue of its own.
func OpenChannel(o ChannelOptions) (_ *Channel, err error) {
	if o.Registry == nil || o.Depth < 0 {
		return nil, fmt.Errorf("open NIC channel of %d requests: it needs a NIC: %w", o.Depth, errdefs.ErrInvalid)
	}
	if o.Depth == 0 {
		o.Depth = defaultDepth
	}
	c := &Channel{
		reg:    o.Registry,
		memory: make(map[*mem.Region]*handle), recent: [2]*handle{{}, {}},
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("open NIC channel: %w", err), c.Close(context.Background()))
		}
	}()
	if err := c.open(channel.Options{NIC: o.Registry, Connect: o.Connect, Depth: o.Depth}); err != nil {
		return nil, err
	}
	if err := c.Connect(c.Endpoint); err != nil {
		return nil, err
	}
	c.requestBytes = min(defaultRequestBytes, c.channel.MessageBytes)
	n := min(chainLength, c.channel.Depth)
	c.wrs, c.sges = make([]rdma.SendWR, 0, n), make([]rdma.SGE, n)
	return c, nil
}

// softProvider is the name of the provider whose figures are kept apart.
const softProvider = "soft"

// Path returns stream.PathNIC, or stream.PathNICSoft for a NIC in software.
func (c *Channel) Path() stream.Path {
	if c.reg.Device().Info().Provider == softProvider {
		return stream.PathNICSoft
	}
	return stream.PathNIC
}

// Move implements bench.Channel. It waits for completions only: posted is when the last request was posted, for which the
// queue may have had to empty first. Batches are lists; their regions are registered. After an error the channel is of
// no use any more, and requests may be under way until it is closed.
func (c *Channel) Move(ctx context.Context, batches []mem.Batch) (posted time.Time, err error) {
	for i := range batches {
		b := &batches[i]
		if b.Paged != nil {
			return time.Now(), fmt.Errorf("move batch %d: a NIC channel takes no page lists: %w", i, errdefs.ErrNotSupported)
		}
		for j := range b.Dst {
			if err := c.copy(ctx, b.Dst[j], b.Src[j]); err != nil {
				return time.Now(), fmt.Errorf("move copy %d of batch %d: %w", j, i, err)
			}
		}
	}
	if err := c.post(ctx); err != nil {
		return time.Now(), err
	}
	posted = time.Now()
	for c.Outstanding() > 0 {
		if _, err := c.completed(ctx); err != nil {
			return posted, err
		}
	}
	return posted, nil
}

// copy builds the requests of one copy, and posts the chain when it is full.
func (c *Channel) copy(ctx context.Context, dst, src mem.Extent) error {
	to, err := c.find(dst.Region, 0)
	if err != nil {
		return err
	}
	from, err := c.find(src.Region, 1)
	if err != nil {
		return err
	}
	// The device's side is the remote one, as in package stream/nic.
	op, near, far := rdma.WRRDMAWrite, from, to
	nearAddr, farAddr := from.base+uint64(src.Off), to.base+uint64(dst.Off)
	if src.Region.Kind() == mem.KindDevice && dst.Region.Kind() != mem.KindDevice {
		op, near, far = rdma.WRRDMARead, to, from
		nearAddr, farAddr = farAddr, nearAddr
	}
	for left := dst.Len; left > 0; {
		n := min(left, c.requestBytes)
		at := len(c.wrs)
		c.sges[at] = rdma.SGE{Addr: nearAddr, Length: uint32(n), LKey: near.lkey}
		c.wrs = append(c.wrs, rdma.SendWR{Opcode: op, RKey: far.rkey, RemoteAddr: farAddr, SGEs: c.sges[at : at+1]})
		if len(c.wrs) == cap(c.wrs) {
			if err := c.post(ctx); err != nil {
				return err
			}
		}
		nearAddr, farAddr, left = nearAddr+uint64(n), farAddr+uint64(n), left-n
	}
	return nil
}

// find returns the handle of r, which is registered, and keeps it so until the channel is closed. side is where it was last.
func (c *Channel) find(r *mem.Region, side int) (*handle, error) {
	if h := c.recent[side]; h.region == r {
		return h, nil
	}
	h := c.memory[r]
	if h == nil {
		m, err := c.reg.Acquire(mem.All(r), access)
		if err != nil {
			return nil, fmt.Errorf("find the %s: %w", r, err)
		}
		info := m.Info()
		h = &handle{region: r, memory: m, base: m.Addr(mem.All(r)), lkey: info.LKey, rkey: info.RKey}
		c.memory[r] = h
	}
	c.recent[side] = h
	return h, nil
}

// post posts the chain, when there is room for it. Its last request has a completion.
func (c *Channel) post(ctx context.Context) error {
	n := len(c.wrs)
	if n == 0 {
		return nil
	}
	for int(c.Outstanding())+n > c.channel.Depth {
		if _, err := c.completed(ctx); err != nil {
			return err
		}
	}
	c.wrs[n-1].Flags = rdma.SendSignaled
	_, err := c.Post(c.wrs)
	c.wrs = c.wrs[:0]
	return err
}

// Close frees the channel, when its queue pair touches no memory any more. It may be called again after a failure.
func (c *Channel) Close(context.Context) error {
	if err := c.close(); err != nil {
		return fmt.Errorf("close NIC channel: %w", err)
	}
	for r, h := range c.memory {
		h.memory.Release()
		delete(c.memory, r)
	}
	c.recent = [2]*handle{{}, {}}
	return nil
}
