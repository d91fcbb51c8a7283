package nic

import (
	"math/bits"

	"github.com/kvlane/kvlane/rdma"
	"github.com/kvlane/kvlane/rdma/channel"
	"github.com/kvlane/kvlane/rdma/registry"
)

// rail is a stream's resources on one NIC.
type rail struct {
	*channel.Channel // nil before open
	index            int
	reg              *registry.Registry
	counters         *Counters
	requestBytes     int64
	pairs            []*pair
	counted          int64 // queue pairs included in counters.pairs

	// Stream.hw guards the following fields.
	armed bool // the channel will report the next completion
	dead  bool // no further completions will arrive
	wcs   []rdma.WC
}

// pollBatch is the maximum number of completions per poll.
const pollBatch = 32

// open opens the channel and connects its queue pairs to themselves. After an error the caller must
// call close.
func (l *rail) open(s *Stream, connect rdma.ConnectOptions) (err error) {
	l.Channel, err = channel.Open(channel.Options{
		NIC: l.reg, Connect: connect, Pairs: s.opts.QueuePairs, Depth: s.opts.SendDepth, SGEs: s.opts.MaxSGE, OnFailure: s.setDeviceErr,
	})
	if err != nil {
		return err
	}
	l.counted = int64(len(l.Pairs))
	l.counters.pairs.Add(l.counted)
	l.counters.opened.Add(l.counted)
	l.requestBytes = min(s.opts.RequestBytes, l.MessageBytes)
	l.wcs = make([]rdma.WC, pollBatch)
	for _, p := range l.Pairs {
		q := newPair(p, l, floorPower(l.Depth), max(l.MaxSGE(rdma.WRRDMAWrite), l.MaxSGE(rdma.WRRDMARead)))
		l.pairs, s.pairs = append(l.pairs, q), append(s.pairs, q)
		if err := p.Connect(p.Endpoint); err != nil {
			return err
		}
	}
	return nil
}

// floorPower returns the largest power of two that is at most n, or 1.
func floorPower(n int) int { return 1 << (bits.Len(uint(max(n, 1))) - 1) }

// close closes the channel. It may be called again after an error.
func (l *rail) close() error {
	if l.Channel == nil {
		return nil
	}
	if err := l.Close(); err != nil {
		return err
	}
	l.counters.pairs.Add(-l.counted)
	l.counted = 0
	return nil
}
