package rdmabench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/rdma"
	"github.com/kvlane/kvlane/rdma/registry"
)

// end is a queue pair with completion queues of its own and the memory of its side.
type end struct {
	sendCQ, recvCQ rdma.CQ
	qp             rdma.QP
	memory         *registry.Memory
	base           uint64 // address of the memory's first byte
	info           rdma.MRInfo
	posted, done   uint64 // of single messages, and those known to have completed
	receives       []rdma.RecvWR
	poll           poller
}

// open makes the queues. What it has made stays for close.
func (e *end) open(nic *registry.Registry, r *mem.Region) (err error) {
	if e.memory, err = nic.Acquire(mem.All(r), access); err != nil {
		return err
	}
	e.base, e.info, e.poll = e.memory.Addr(mem.All(r)), e.memory.Info(), newPoller(postList)
	dev := nic.Device()
	if e.sendCQ, err = dev.CreateCQ(rdma.CQOptions{Entries: txDepth}); err != nil {
		return err
	}
	if e.recvCQ, err = dev.CreateCQ(rdma.CQOptions{Entries: rxDepth}); err != nil {
		return err
	}
	e.qp, err = nic.PD().CreateQP(rdma.QPOptions{
		SendCQ: e.sendCQ, RecvCQ: e.recvCQ, Caps: rdma.QPCaps{MaxSendWR: txDepth, MaxRecvWR: rxDepth, MaxSendSGE: 1, MaxRecvSGE: 1},
	})
	return err
}

// close closes what is open, and may be called again after a failure.
func (e *end) close() error {
	if e.qp != nil {
		if err := e.qp.Close(); err != nil {
			return err
		}
		e.qp = nil
	}
	for _, q := range []*rdma.CQ{&e.sendCQ, &e.recvCQ} {
		if *q == nil {
			continue
		}
		if err := (*q).Close(); err != nil {
			return err
		}
		*q = nil
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
	_, err := e.qp.PostRecv(e.receives[:n])
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
	if err := p.near.open(o.NIC, o.Local); err != nil {
		return nil, err
	}
	if err := p.far.open(o.NIC, o.Remote); err != nil {
		return nil, err
	}
	dev := o.NIC.Device()
	for _, c := range [][2]*end{{&p.near, &p.far}, {&p.far, &p.near}} {
		to, err := rdma.LocalEndpoint(dev, c[1].qp, o.Connect)
		if err != nil {
			return nil, err
		}
		if err := rdma.Connect(dev, c[0].qp, o.Connect, to); err != nil {
			return nil, err
		}
	}
	return p, nil
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
	for range times {
		start := time.Now()
		if _, err := p.near.qp.PostSend(w); err != nil {
			return err
		}
		if _, err := p.near.poll.wait(ctx, p.near.sendCQ); err != nil {
			return fmt.Errorf("wait for one %s: %w", op, err)
		}
		if each != nil {
			each(time.Since(start))
		}
	}
	return nil
}
