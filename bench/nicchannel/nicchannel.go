// Package nicchannel copies with a loopback queue pair, without a stream. It measures the rate of
// the NIC itself.
package nicchannel

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/rdma"
	"github.com/kvlane/kvlane/rdma/channel"
	"github.com/kvlane/kvlane/rdma/registry"
	"github.com/kvlane/kvlane/stream"
)

const (
	defaultDepth        = 1024
	defaultRequestBytes = 1 << 20
	chainLength         = 64 // requests with one doorbell and one completion

	// replyTimeout is the maximum wait for the next completion of a NIC.
	replyTimeout = 20 * time.Second
	// pollsPerCheck is the number of polls without a completion before the clock and the context
	// are checked.
	pollsPerCheck = 1024

	// access is the access that registered memory must permit: a channel reads and writes it.
	access = rdma.AccessLocalWrite | rdma.AccessRemoteWrite | rdma.AccessRemoteRead

	softProvider = "soft"
)

// Options are the options of a channel. Registry is required.
type Options struct {
	// Registry is the NIC with its registered memory. It must outlive the channel.
	Registry *registry.Registry
	Connect  rdma.ConnectOptions
	// Depth is the maximum number of outstanding requests. Default 1024, or the limit of the
	// device.
	Depth int
}

// Channel copies lists of extents. Copies from a device to the host are RDMA reads, all other
// copies are RDMA writes. The extents of one call of Move must not overlap. Channel implements
// bench.Channel. It is not safe for concurrent use.
type Channel struct {
	*channel.Pair
	channel      *channel.Channel // nil after Close
	reg          *registry.Registry
	requestBytes int64
	completions  []rdma.WC

	memory map[*mem.Region]*handle // references held until Close
	recent [2]*handle              // destination and source of the last copy

	wrs  []rdma.SendWR // requests of the next chain
	sges []rdma.SGE
}

// handle has the address and the keys of a registered region.
type handle struct {
	region     *mem.Region
	memory     *registry.Memory
	base       uint64 // address of the first byte
	lkey, rkey uint32
}

// Open opens a channel with its own queue pair and completion queue.
func Open(o Options) (_ *Channel, err error) {
	if o.Registry == nil || o.Depth < 0 {
		return nil, fmt.Errorf("open NIC channel of %d requests: it needs a NIC: %w", o.Depth, errdefs.ErrInvalid)
	}
	if o.Depth == 0 {
		o.Depth = defaultDepth
	}
	c := &Channel{reg: o.Registry, memory: make(map[*mem.Region]*handle), recent: [2]*handle{{}, {}}}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("open NIC channel: %w", err), c.Close(context.Background()))
		}
	}()
	if c.channel, err = channel.Open(channel.Options{NIC: o.Registry, Connect: o.Connect, Depth: o.Depth}); err != nil {
		return nil, err
	}
	c.Pair = c.channel.Pairs[0]
	if err := c.Connect(c.Endpoint); err != nil {
		return nil, err
	}
	c.requestBytes = min(defaultRequestBytes, c.channel.MessageBytes)
	c.completions = make([]rdma.WC, o.Depth)
	n := min(chainLength, c.channel.Depth)
	c.wrs, c.sges = make([]rdma.SendWR, 0, n), make([]rdma.SGE, n)
	return c, nil
}

// Path returns stream.PathNIC, or stream.PathNICSoft for a software NIC.
func (c *Channel) Path() stream.Path {
	if c.reg.Device().Info().Provider == softProvider {
		return stream.PathNICSoft
	}
	return stream.PathNIC
}

// Move implements bench.Channel. The batches must be lists of extents in registered regions. posted
// is the time after the last request was posted; posting may wait for space in the queue. After an
// error the channel must be closed, and requests may be in progress until then.
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
		if err := c.waitCompletions(ctx); err != nil {
			return posted, err
		}
	}
	return posted, nil
}

// copy adds the requests of one copy to the chain. It posts each full chain.
func (c *Channel) copy(ctx context.Context, dst, src mem.Extent) error {
	to, err := c.find(dst.Region, 0)
	if err != nil {
		return err
	}
	from, err := c.find(src.Region, 1)
	if err != nil {
		return err
	}
	// The device is the remote side, as in package stream/nic.
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

// find returns the handle of a registered region. It keeps the memory registered until Close. side
// is an index of c.recent.
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

// post waits for space in the queue and posts the chain. Only the last request has a completion.
func (c *Channel) post(ctx context.Context) error {
	n := len(c.wrs)
	if n == 0 {
		return nil
	}
	for int(c.Outstanding())+n > c.channel.Depth {
		if err := c.waitCompletions(ctx); err != nil {
			return err
		}
	}
	c.wrs[n-1].Flags = rdma.SendSignaled
	_, err := c.Post(c.wrs)
	c.wrs = c.wrs[:0]
	return err
}

// waitCompletions polls until at least one request has completed. It returns an error if ctx ends,
// a request fails, or there is no completion for replyTimeout.
func (c *Channel) waitCompletions(ctx context.Context) error {
	var since time.Time
	for n := 1; ; n++ {
		got, err := c.channel.CQ.Poll(c.completions)
		if err != nil {
			return err
		}
		for i := range c.completions[:got] {
			if err := c.completions[i].Err(); err != nil {
				return fmt.Errorf("wait for %d requests: %w", c.Outstanding(), err)
			}
		}
		if got > 0 {
			for i := range c.completions[:got] {
				c.channel.Completed(&c.completions[i])
			}
			return nil
		}
		if n%pollsPerCheck == 0 {
			switch {
			case ctx.Err() != nil:
				return context.Cause(ctx)
			case since.IsZero():
				since = time.Now()
			case time.Since(since) > replyTimeout:
				return fmt.Errorf("%d requests did not complete in %v: %w", c.Outstanding(), replyTimeout, context.DeadlineExceeded)
			}
		}
		runtime.Gosched() // a software NIC may need the processor
	}
}

// Close closes the channel. When it returns nil, the queue pair no longer uses memory. After an
// error it may be retried.
func (c *Channel) Close(context.Context) error {
	if c.channel != nil {
		if err := c.channel.Close(); err != nil {
			return fmt.Errorf("close NIC channel: %w", err)
		}
	}
	for r, h := range c.memory {
		h.memory.Release()
		delete(c.memory, r)
	}
	c.recent = [2]*handle{{}, {}}
	return nil
}
