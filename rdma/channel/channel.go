package channel

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/rdma"
	"github.com/kvlane/kvlane/rdma/registry"
)

// Options are the options of a channel. NIC is required.
type Options struct {
	// NIC is the NIC that transfers the data. Its registry has the memory that requests use. The
	// caller closes it.
	NIC *registry.Registry
	// Connect has the options for connections, such as port and GID. If Port is zero, rdma.FindPort
	// chooses the port, the GID and the MTU.
	Connect rdma.ConnectOptions
	// Pairs is the number of queue pairs. They share a completion queue. Default 1.
	Pairs int
	// Depth is the maximum number of outstanding requests of a queue pair. Default 1. The limit of
	// the device applies.
	Depth int
	// Receives is the maximum number of posted receives of a queue pair. Their completions go to a
	// separate completion queue, which has separate events. Default: none.
	Receives int
	// SGEs is the maximum number of scatter-gather entries of a request. Default 1. The limit of
	// the device applies.
	SGEs int
	// OnFailure is called for failures of the device, a completion queue or a queue pair that no
	// completion reports. It must not block. One call may still begin after Close has returned.
	// Optional.
	OnFailure func(error)
}

// Channel is a set of queue pairs of one NIC that share a completion queue. Open sets its fields;
// they must not be changed.
type Channel struct {
	Pairs        []*Pair
	CQ           rdma.CQ // for completions of requests; pass each one to Completed
	Receives     rdma.CQ // for completions of receives; nil without receives
	Depth        int     // maximum number of outstanding requests of a queue pair
	MessageBytes int64   // maximum length of a request

	nic            *registry.Registry
	connect        rdma.ConnectOptions
	sges, sgesRead int
	events         rdma.CompChannel
	receiveEvents  rdma.CompChannel             // nil without receives
	opened         []interface{ Close() error } // open objects, parents first
	unwatch        func()
}

// Open creates the completion queues and unconnected queue pairs. It returns ErrInvalid for invalid
// options, ErrBroken if the port is not active, and errors of the verbs. On error it closes all
// objects that it created.
func Open(o Options) (*Channel, error) {
	if o.NIC == nil || min(o.Pairs, o.Depth, o.Receives, o.SGEs) < 0 || o.Pairs > MaxPairs {
		return nil, fmt.Errorf("open channel of %d queue pairs, %d requests deep: %w", o.Pairs, o.Depth, errdefs.ErrInvalid)
	}
	c := &Channel{nic: o.NIC, connect: o.Connect, unwatch: func() {}}
	err := c.findPort()
	if err == nil {
		err = c.open(&o)
	}
	if err == nil {
		return c, nil
	}
	if closeErr := c.Close(); closeErr != nil {
		// close again: a close may fail once, and the caller has no channel to close
		err = errors.Join(err, closeErr, c.Close())
	}
	return nil, fmt.Errorf("open channel of NIC %s: %w", o.NIC.Name(), err)
}

// findPort chooses the port if the options have none and records the port's maximum message length.
func (c *Channel) findPort() error {
	dev := c.nic.Device()
	if c.connect.Port == 0 {
		port, err := rdma.FindPort(dev, rdma.PortOptions{MTU: c.connect.MTU})
		if err != nil {
			return err
		}
		c.connect.Port, c.connect.GIDIndex, c.connect.MTU = port.Number, port.GIDIndex, port.MTU
	}
	port, err := dev.QueryPort(c.connect.Port)
	if c.MessageBytes = int64(port.MaxMessageBytes); err == nil && c.MessageBytes == 0 {
		err = fmt.Errorf("port %d has a maximum message size of 0: %w", c.connect.Port, errdefs.ErrBroken)
	}
	return err
}

func (c *Channel) open(o *Options) (err error) {
	dev, pairs := c.nic.Device(), max(o.Pairs, 1)
	info := dev.Info()
	c.sges, c.sgesRead = max(min(o.SGEs, info.MaxSGE), 1), max(min(o.SGEs, info.MaxSGERead), 1)
	// A completion queue that overflows is lost, and a failure completes every outstanding request.
	// The queue therefore needs one entry for each request.
	c.Depth = min(max(o.Depth, 1), info.MaxQPWR, info.MaxCQE/pairs)
	if c.events, err = dev.CreateCompChannel(); err != nil {
		return err
	}
	c.opened = append(c.opened, c.events)
	if c.CQ, err = dev.CreateCQ(rdma.CQOptions{Entries: c.Depth * pairs, Channel: c.events}); err != nil {
		return err
	}
	c.opened = append(c.opened, c.CQ)
	q := rdma.QPOptions{SendCQ: c.CQ, RecvCQ: c.CQ, Caps: rdma.QPCaps{MaxSendWR: c.Depth, MaxSendSGE: max(c.sges, c.sgesRead)}}
	if o.Receives > 0 {
		if c.receiveEvents, err = dev.CreateCompChannel(); err != nil {
			return err
		}
		c.opened = append(c.opened, c.receiveEvents)
		if c.Receives, err = dev.CreateCQ(rdma.CQOptions{Entries: o.Receives * pairs, Channel: c.receiveEvents}); err != nil {
			return err
		}
		c.opened = append(c.opened, c.Receives)
		q.RecvCQ, q.Caps.MaxRecvWR, q.Caps.MaxRecvSGE = c.Receives, o.Receives, 1
	}
	for i := range pairs {
		p := &Pair{channel: c, index: uint64(i)}
		if p.QP, err = c.nic.PD().CreateQP(q); err != nil {
			return err
		}
		c.Pairs, c.opened = append(c.Pairs, p), append(c.opened, p.QP)
		if p.Endpoint, err = rdma.LocalEndpoint(dev, p.QP, c.connect); err != nil {
			return err
		}
	}
	if o.OnFailure != nil {
		c.unwatch = c.nic.Watch(func(e rdma.AsyncEvent) { c.reportFailure(e, o.OnFailure) })
	}
	return nil
}

// reportFailure calls onFailure if e reports a failure of one of the channel's objects.
func (c *Channel) reportFailure(e rdma.AsyncEvent, onFailure func(error)) {
	switch e.Type {
	case rdma.EventDeviceFatal:
	case rdma.EventCQErr:
		if e.CQ == nil || e.CQ != c.CQ && e.CQ != c.Receives {
			return
		}
	case rdma.EventQPFatal, rdma.EventQPReqErr, rdma.EventQPAccessErr:
		if !slices.ContainsFunc(c.Pairs, func(p *Pair) bool { return p.QP.Num() == e.QPNum }) {
			return
		}
	default: // other events are not failures, or a completion reports them
		return
	}
	onFailure(fmt.Errorf("NIC %s: %s", c.nic.Name(), e.Type))
}

// MaxSGE returns the maximum number of scatter-gather entries of a request.
func (c *Channel) MaxSGE(o rdma.WROpcode) int {
	if o == rdma.WRRDMARead {
		return c.sgesRead
	}
	return c.sges
}

// Wait waits for a completion that arrives after CQ.RequestNotify. It returns the errors of
// rdma.CompChannel.Wait. It must not be called during or after Close.
func (c *Channel) Wait(ctx context.Context) error {
	_, err := c.events.Wait(ctx)
	return err
}

// WaitReceive is Wait for a completion since Receives.RequestNotify. The channel must have receives.
func (c *Channel) WaitReceive(ctx context.Context) error {
	_, err := c.receiveEvents.Wait(ctx)
	return err
}

// Outstanding returns the number of requests of all queue pairs for which no completion was
// processed.
func (c *Channel) Outstanding() (n uint64) {
	for _, p := range c.Pairs {
		n += p.Outstanding()
	}
	return n
}

// Close closes the queue pairs and the completion queues. Completions of outstanding requests are
// lost. If Close returns nil, no request accesses memory any more. It returns the errors of the
// verbs, and ErrBusy while a transfer is in progress. The caller may retry it.
func (c *Channel) Close() error {
	c.unwatch()
	for i, v := range slices.Backward(c.opened) {
		if err := v.Close(); err != nil {
			return fmt.Errorf("close channel: %w", err)
		}
		c.opened = c.opened[:i]
	}
	return nil
}
