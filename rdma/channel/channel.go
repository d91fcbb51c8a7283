package channel

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/rdma"
	"github.com/kvlane/kvlane/rdma/registry"
	"github.com/kvlane/kvlane/rdma/topology"
)

// Options say how a channel is opened. NIC is required.
type Options struct {
	// NIC is the NIC, whose memory requests name. The channel does not own it.
	NIC *registry.Registry
	// Connect says how queue pairs are connected: port, GID and the rest. Port zero: the first active port, its best GID and its
	// MTU, as topology.FindPort finds them.
	Connect rdma.ConnectOptions
	// Pairs is the number of queue pairs, which complete in one queue. Default 1.
	Pairs int
	// Depth is how many requests each has outstanding. Default 1. What the device has less, it is.
	Depth int
	// Receives is how many receives each holds, which complete in a queue of their own. Default: none.
	Receives int
	// SGEs is how many scatter-gather entries a request has at most. Default 1. What the device has less, it is.
	SGEs int
	// Alarm, where it is not nil, is called with failures that completions may not tell: of the device, the completion queues, or
	// a queue pair. It must not block, and may be called until Close has returned, and once more.
	Alarm func(error)
}

// Channel is queue pairs of one NIC with their completion queue.
type Channel struct {
	nic          *registry.Registry
	connect      rdma.ConnectOptions
	messageBytes int64
	depth        int
	sges         int
	sgesRead     int

	events       rdma.CompChannel
	cq, receives rdma.CQ
	pairs        []*Pair // those that are open
	unwatch      func()  // nil: nobody watches
}

// Open makes completion queues and queue pairs, which are to be connected. Errors: ErrInvalid for options, ErrBroken where the
// port is not active, and those of the verbs; everything is closed again then.
func Open(o Options) (*Channel, error) {
	if o.NIC == nil || min(o.Pairs, o.Depth, o.Receives, o.SGEs) < 0 || o.Pairs > MaxPairs {
		return nil, fmt.Errorf("open channel of %d queue pairs, %d requests deep: %w", o.Pairs, o.Depth, errdefs.ErrInvalid)
	}
	c := &Channel{nic: o.NIC, connect: o.Connect}
	if err := c.open(&o); err != nil {
		err = fmt.Errorf("open channel of NIC %s: %w", o.NIC.Name(), err)
		if closeErr := c.Close(); closeErr != nil {
			err = errors.Join(err, closeErr, c.Close()) // once more: nobody else could
		}
		return nil, err
	}
	return c, nil
}

func (c *Channel) open(o *Options) error {
	dev := c.nic.Device()
	if err := c.findPort(dev); err != nil {
		return err
	}
	info := dev.Info()
	c.sges, c.sgesRead = max(min(o.SGEs, info.MaxSGE), 1), max(min(o.SGEs, info.MaxSGERead), 1)
	pairs := max(o.Pairs, 1)
	// A completion queue without room is lost, and failures complete every request.
	c.depth = min(max(o.Depth, 1), info.MaxQPWR, info.MaxCQE/pairs)
	var err error
	if c.events, err = dev.CreateCompChannel(); err != nil {
		return err
	}
	if c.cq, err = dev.CreateCQ(rdma.CQOptions{Entries: c.depth * pairs, Channel: c.events}); err != nil {
		return err
	}
	q := rdma.QPOptions{SendCQ: c.cq, RecvCQ: c.cq, Caps: rdma.QPCaps{MaxSendWR: c.depth, MaxSendSGE: max(c.sges, c.sgesRead)}}
	if o.Receives > 0 {
		if c.receives, err = dev.CreateCQ(rdma.CQOptions{Entries: o.Receives * pairs}); err != nil {
			return err
		}
		q.RecvCQ, q.Caps.MaxRecvWR, q.Caps.MaxRecvSGE = c.receives, o.Receives, 1
	}
	for i := range pairs {
		p := &Pair{channel: c, index: uint64(i)}
		if p.qp, err = c.nic.PD().CreateQP(q); err != nil {
			return err
		}
		c.pairs = append(c.pairs, p)
		if p.endpoint, err = rdma.LocalEndpoint(dev, p.qp, c.connect); err != nil {
			return err
		}
	}
	if o.Alarm != nil {
		c.watch(o.Alarm)
	}
	return nil
}

// findPort chooses the port, if none is named, and notes what it carries.
func (c *Channel) findPort(dev rdma.Device) error {
	if c.connect.Port == 0 {
		port, err := topology.FindPort(dev, topology.PortOptions{MTU: c.connect.MTU})
		if err != nil {
			return err
		}
		c.connect.Port, c.connect.GIDIndex, c.connect.MTU = port.Number, port.GIDIndex, port.MTU
	}
	port, err := dev.QueryPort(c.connect.Port)
	if err != nil {
		return err
	}
	if c.messageBytes = int64(port.MaxMessageBytes); c.messageBytes == 0 {
		return fmt.Errorf("port %d carries messages of no bytes: %w", c.connect.Port, errdefs.ErrBroken)
	}
	return nil
}

// watch calls alarm with failures that completions may not tell.
func (c *Channel) watch(alarm func(error)) {
	queues := []rdma.CQ{c.cq, c.receives}
	var nums []uint32
	for _, p := range c.pairs {
		nums = append(nums, p.qp.Num())
	}
	c.unwatch = c.nic.Watch(func(e rdma.AsyncEvent) {
		switch e.Type {
		case rdma.EventDeviceFatal:
			alarm(fmt.Errorf("NIC %s: %s", c.nic.Name(), e.Type))
		case rdma.EventCQErr:
			if e.CQ != nil && slices.Contains(queues, e.CQ) {
				alarm(fmt.Errorf("NIC %s: completion queue: %s", c.nic.Name(), e.Type))
			}
		case rdma.EventQPFatal, rdma.EventQPReqErr, rdma.EventQPAccessErr:
			if slices.Contains(nums, e.QPNum) {
				alarm(fmt.Errorf("NIC %s: queue pair %d: %s", c.nic.Name(), e.QPNum, e.Type))
			}
		default: // the rest is no failure, or shows in completions
		}
	})
}

// Pairs returns the queue pairs.
func (c *Channel) Pairs() []*Pair { return c.pairs }

// MessageBytes returns the length of the longest request in bytes.
func (c *Channel) MessageBytes() int64 { return c.messageBytes }

// Depth returns how many requests each queue pair has outstanding at most.
func (c *Channel) Depth() int { return c.depth }

// MaxSGE returns how many scatter-gather entries a request has at most.
func (c *Channel) MaxSGE(o rdma.WROpcode) int {
	if o == rdma.WRRDMARead {
		return c.sgesRead
	}
	return c.sges
}

// CQ returns where requests complete. Each completion has to be given to Completed.
func (c *Channel) CQ() rdma.CQ { return c.cq }

// Receives returns where receives complete, if there are any.
func (c *Channel) Receives() rdma.CQ { return c.receives }

// Wait waits for a completion since CQ().RequestNotify, until ctx ends; errors as rdma.CompChannel.Wait. Nobody calls it once
// somebody calls Close.
func (c *Channel) Wait(ctx context.Context) error {
	_, err := c.events.Wait(ctx)
	return err
}

// Outstanding returns how many requests of all queue pairs have not completed as far as known.
func (c *Channel) Outstanding() (n uint64) {
	for _, p := range c.pairs {
		n += p.Outstanding()
	}
	return n
}

// Close closes the queue pairs, and then their queues. What is outstanding is forgotten: nothing of it touches memory any more
// when Close has returned nil. Errors are those of the verbs, ErrBusy where bytes are still on their way; it may be called again.
func (c *Channel) Close() error {
	if c.unwatch != nil {
		c.unwatch()
		c.unwatch = nil
	}
	var errs []error
	c.pairs = slices.DeleteFunc(c.pairs, func(p *Pair) bool {
		err := p.qp.Close()
		errs = append(errs, err)
		return err == nil
	})
	if err := errors.Join(errs...); err != nil {
		return err
	}
	for _, q := range []*rdma.CQ{&c.receives, &c.cq} {
		if *q == nil {
			continue
		}
		if err := (*q).Close(); err != nil {
			return fmt.Errorf("completion queue: %w", err)
		}
		*q = nil
	}
	if c.events != nil {
		if err := c.events.Close(); err != nil {
			return fmt.Errorf("completion channel: %w", err)
		}
		c.events = nil
	}
	return nil
}
