package nic

import (
	"errors"
	"fmt"
	"math/bits"
	"slices"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/rdma"
	"github.com/kvlane/kvlane/rdma/registry"
	"github.com/kvlane/kvlane/rdma/topology"
)

// rail is what a stream has of one NIC.
type rail struct {
	index        int
	reg          *registry.Registry
	counters     *Counters
	requestBytes int64
	sges         int // of a write
	sgesRead     int

	channel rdma.CompChannel
	cq      rdma.CQ
	pairs   []*pair
	unwatch func() // the NIC's events; nil: they are not watched

	// Of whoever has the turn.
	armed bool // the channel will tell of the next completion
	deaf  bool // completions do not come any more
	wcs   []rdma.WC
}

// pollBatch is how many completions are taken at once.
const pollBatch = 32

func (l *rail) maxSGE(o rdma.WROpcode) int {
	if o == rdma.WRRDMARead {
		return l.sgesRead
	}
	return l.sges
}

// open makes channel, completion queue and queue pairs. What it has made stays for close.
func (l *rail) open(s *Stream, connect rdma.ConnectOptions) error {
	dev := l.reg.Device()
	info := dev.Info()
	if connect.Port == 0 {
		port, err := topology.FindPort(dev, topology.PortOptions{MTU: connect.MTU})
		if err != nil {
			return err
		}
		connect.Port, connect.GIDIndex, connect.MTU = port.Number, port.GIDIndex, port.MTU
	}
	port, err := dev.QueryPort(connect.Port)
	if err != nil {
		return err
	}
	if port.MaxMessageBytes == 0 {
		return fmt.Errorf("port %d carries messages of no bytes: %w", connect.Port, errdefs.ErrBroken)
	}
	l.requestBytes = min(s.opts.RequestBytes, int64(port.MaxMessageBytes))
	l.sges = max(min(s.opts.MaxSGE, info.MaxSGE), 1)
	l.sgesRead = max(min(s.opts.MaxSGE, info.MaxSGERead), 1)
	// A completion queue without room is lost, and failures complete every request.
	depth := min(s.opts.SendDepth, floorPower(info.MaxQPWR), floorPower(info.MaxCQE/s.opts.QueuePairs))
	l.wcs = make([]rdma.WC, pollBatch)

	if l.channel, err = dev.CreateCompChannel(); err != nil {
		return err
	}
	if l.cq, err = dev.CreateCQ(rdma.CQOptions{Entries: depth * s.opts.QueuePairs, Channel: l.channel}); err != nil {
		return err
	}
	for range s.opts.QueuePairs {
		q := newPair(len(s.pairs), l, depth, max(l.sges, l.sgesRead))
		q.qp, err = l.reg.PD().CreateQP(rdma.QPOptions{
			SendCQ: l.cq, RecvCQ: l.cq, Caps: rdma.QPCaps{MaxSendWR: depth, MaxSendSGE: max(l.sges, l.sgesRead)},
		})
		if err != nil {
			return err
		}
		l.pairs, s.pairs = append(l.pairs, q), append(s.pairs, q)
		l.counters.pairs.Add(1)
		l.counters.opened.Add(1)
		if err := rdma.Loopback(dev, q.qp, connect); err != nil {
			return err
		}
	}
	l.watch(s)
	return nil
}

// watch has the stream told of failures that completions may not tell.
func (l *rail) watch(s *Stream) {
	cq := l.cq
	nums := make([]uint32, len(l.pairs))
	for i, q := range l.pairs {
		nums[i] = q.qp.Num()
	}
	l.unwatch = l.reg.Watch(func(e rdma.AsyncEvent) {
		switch e.Type {
		case rdma.EventDeviceFatal:
			s.raise(fmt.Errorf("NIC %s: %s", l.reg.Name(), e.Type))
		case rdma.EventCQErr:
			if e.CQ == cq {
				s.raise(fmt.Errorf("NIC %s: completion queue: %s", l.reg.Name(), e.Type))
			}
		case rdma.EventQPFatal, rdma.EventQPReqErr, rdma.EventQPAccessErr:
			if slices.Contains(nums, e.QPNum) {
				s.raise(fmt.Errorf("NIC %s: queue pair %d: %s", l.reg.Name(), e.QPNum, e.Type))
			}
		default: // the rest is no failure, or shows in completions
		}
	})
}

// floorPower returns the largest power of two that is at most n, or 1.
func floorPower(n int) int { return 1 << (bits.Len(uint(max(n, 1))) - 1) }

// close closes what is open, children first. It may be called again after a failure.
func (l *rail) close() error {
	if l.unwatch != nil {
		l.unwatch()
		l.unwatch = nil
	}
	var errs []error
	for _, q := range l.pairs {
		if q.closed {
			continue
		}
		if err := q.qp.Close(); err != nil {
			errs = append(errs, err)
			continue
		}
		q.closed = true
		l.counters.pairs.Add(-1)
	}
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	if l.cq != nil {
		if err := l.cq.Close(); err != nil {
			return fmt.Errorf("completion queue: %w", err)
		}
		l.cq = nil
	}
	if l.channel != nil {
		if err := l.channel.Close(); err != nil {
			return fmt.Errorf("completion channel: %w", err)
		}
		l.channel = nil
	}
	return nil
}
