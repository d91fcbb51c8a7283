package rdmabench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/rdma"
	"github.com/kvlane/kvlane/rdma/channel"
	"github.com/kvlane/kvlane/rdma/registry"
)

// end is a connected queue pair and the memory of its side.
type end struct {
	link
	memory   *registry.Memory
	base     uint64 // address of the memory's first byte
	info     rdma.MRInfo
	receives []rdma.RecvWR
}

// open makes the queues. What it has made stays for close.
func (e *end) open(o *Options, r *mem.Region) (err error) {
	if e.memory, err = o.NIC.Acquire(mem.All(r), access); err != nil {
		return err
	}
	e.base, e.info = e.memory.Addr(mem.All(r)), e.memory.Info()
	return e.link.open(channel.Options{NIC: o.NIC, Connect: o.Connect, Depth: txDepth, Receives: rxDepth})
}

// close closes what is open, and may be called again after a failure.
func (e *end) close() error {
	if err := e.link.close(); err != nil {
		return err
	}
	if e.memory != nil {
		e.memory.Release()
		e.memory = nil
	}
	return nil
}

// sge names n bytes from byte off.
func (e *end) sge(off, n int64) rdma.SGE {
	return rdma.SGE{Addr: e.base + uint64(off), Length: uint32(n), LKey: e.info.LKey}
}

// expect posts as many receives as the queue has, of up to size bytes each, all into the same memory.
func (e *end) expect(size int64) error {
	e.receives = make([]rdma.RecvWR, rxDepth)
	for i := range e.receives {
		e.receives[i].SGEs = []rdma.SGE{e.sge(0, size)}
	}
	return e.expectMore(rxDepth)
}

// expectMore posts n of them again.
func (e *end) expectMore(n int) error {
	_, err := e.QP.PostRecv(e.receives[:n])
	return err
}

// pair is two queue pairs of one NIC that are connected to each other.
type pair struct{ near, far end }

// openPair makes and connects both ends.
func openPair(o *Options) (_ *pair, err error) {
	p := new(pair)
	defer func() {
		if err != nil {
			err = errors.Join(err, p.close())
		}
	}()
	if err := p.near.open(o, o.Local); err != nil {
		return nil, err
	}
	if err := p.far.open(o, o.Remote); err != nil {
		return nil, err
	}
	if err := p.near.Connect(p.far.Endpoint); err != nil {
		return nil, err
	}
	return p, p.far.Connect(p.near.Endpoint)
}

func (p *pair) close() error {
	return errors.Join(p.near.close(), p.far.close())
}

// request returns the request of an operation of n bytes from the near end, where its local bytes lie at off.
func (p *pair) request(op Op, off, n int64) rdma.SendWR {
	w := rdma.SendWR{SGEs: []rdma.SGE{p.near.sge(off, n)}, RKey: p.far.info.RKey, RemoteAddr: p.far.base}
	switch op {
	case Write:
		w.Opcode = rdma.WRRDMAWrite
	case Read:
		w.Opcode = rdma.WRRDMARead
	case Send:
		w.Opcode = rdma.WRSend
	}
	return w
}

// repeat makes an operation so many times, one at a time, and tells each how long one took, if it is not nil.
func (p *pair) repeat(ctx context.Context, op Op, off, n int64, times int, each func(time.Duration)) error {
	w := []rdma.SendWR{p.request(op, off, n)}
	w[0].Flags = rdma.SendSignaled
	for i := range times {
		if err := ended(ctx, i); err != nil {
			return err
		}
		start := time.Now()
		if _, err := p.near.Post(w); err != nil {
			return err
		}
		if _, err := p.near.completed(ctx); err != nil {
			return fmt.Errorf("wait for one %s: %w", op, err)
		}
		if each != nil {
			each(time.Since(start))
		}
	}
	return nil
}
