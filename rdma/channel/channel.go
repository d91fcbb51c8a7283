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

// Options say how a channel is opened. NIC is required.
type Options struct {
	// NIC is the NIC, whose memory requests name. The channel does not own it.
	NIC *registry.Registry
	// Connect says how queue pairs are connected: port, GID and the rest. Port zero: the first active port, its best GID and its
	// MTU, as rdma.FindPort finds them.
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

// Channel is queue pairs of one NIC with their completion queue. Its fields are set by Open, for reading.
type Channel struct {
	Pairs        []*Pair
	CQ           rdma.CQ // where requests complete; each completion has to be given to Completed
	Receives     rdma.CQ // where receives complete; nil: there are none
	Depth        int     // how many requests each queue pair has outstanding at most
	MessageBytes int64   // length of the longest request

	nic            *registry.Registry
	connect        rdma.ConnectOptions
	sges, sgesRead int
	events         rdma.CompChannel
	opened         []interface{ Close() error } // what is open, parents first
	unwatch        func()
}

// Open makes completion queues and queue pairs, which are to be connected. Errors: ErrInvalid for options, ErrBroken where the
// port is not active, and those of the verbs; everything is closed again then.
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
		err = errors.Join(err, closeErr, c.Close()) // once more: nobody else could
	}
	return nil, fmt.Errorf("open channel of NIC %s: %w", o.NIC.Name(), err)
}

// findPort chooses the port, if none is named, and notes what it carries.
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
		err = fmt.Errorf("port %d carries messages of no bytes: %w", c.connect.Port, errdefs.ErrBroken)
	}
	return err
}

func (c *Channel) open(o *Options) (err error) {
	dev, pairs := c.nic.Device(), max(o.Pairs, 1)
	info := dev.Info()
	c.sges, c.sgesRead = max(min(o.SGEs, info.MaxSGE), 1), max(min(o.SGEs, info.MaxSGERead), 1)
	// A completion queue without room is lost, and failures complete every request.
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
		if c.Receives, err = dev.CreateCQ(rdma.CQOptions{Entries: o.Receives * pairs}); err != nil {
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
	if o.Alarm != nil {
		c.unwatch = c.nic.Watch(func(e rdma.AsyncEvent) { c.reportFailure(e, o.Alarm) })
	}
	return nil
}

// heed calls alarm if e is a failure of the channel's.
func (c *Channel) reportFailure(e rdma.AsyncEvent, alarm func(error)) {
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
	default: // the rest is no failure, or shows in completions
		return
	}
	alarm(fmt.Errorf("NIC %s: %s", c.nic.Name(), e.Type))
}

// MaxSGE returns how many scatter-gather entries a request has at most.
func (c *Channel) MaxSGE(o rdma.WROpcode) int {
	if o == rdma.WRRDMARead {
		return c.sgesRead
	}
	return c.sges
}

// Wait waits for a completion since CQ.RequestNotify, until ctx ends; errors as rdma.CompChannel.Wait. Nobody calls it once
// somebody calls Close.
func (c *Channel) Wait(ctx context.Context) error {
	_, err := c.events.Wait(ctx)
	return err
}

// Outstanding returns how many requests of all queue pairs have not completed as far as known.
func (c *Channel) Outstanding() (n uint64) {
	for _, p := range c.Pairs {
		n += p.Outstanding()
	}
	return n
}

// Close closes the queue pairs, and then their queues. What is outstanding is forgotten: nothing of it touches memory any more
// when Close has returned nil. Errors are those of the verbs, ErrBusy where bytes are still on their way; it may be called again.
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
