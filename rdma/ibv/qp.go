package ibv

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/sys/ibverbs"
	"github.com/kvlane/kvlane/rdma"
)

// QP implements rdma.QP.
type QP struct {
	object
	pd      *PD
	parents []*object
	native  ibverbs.QP
	num     uint32
	caps    rdma.QPCaps
	shared  bool // receives come from a shared queue

	// state is the last state set by Modify. After a failure the device may be in QPSErr instead.
	state atomic.Uint32

	modify sync.Mutex  // serializes Modify
	attr   rdma.QPAttr // attributes set since QPSReset; guarded by modify

	send sender
	recv receiver
}

// CreateQP implements rdma.PD.
func (p *PD) CreateQP(o rdma.QPOptions) (rdma.QP, error) {
	q, err := p.createQP(o)
	if err != nil {
		return nil, fmt.Errorf("create queue pair of %s: %w", p.what, err)
	}
	return q, nil
}

func (p *PD) createQP(o rdma.QPOptions) (*QP, error) {
	if err := p.dev.checkQPCaps(o); err != nil {
		return nil, err
	}
	sendCQ, err := ownObject[*CQ](p.dev, o.SendCQ, "completion queue of sends")
	if err != nil {
		return nil, err
	}
	recvCQ, err := ownObject[*CQ](p.dev, o.RecvCQ, "completion queue of receives")
	if err != nil {
		return nil, err
	}
	a := ibverbs.QPInitAttr{SendCQ: sendCQ.native, RecvCQ: recvCQ.native, Cap: nativeCaps(o.Caps), Type: ibverbs.QPTypeRC}
	if o.SignalAll {
		a.SigAll = 1
	}
	q := &QP{pd: p, parents: []*object{&p.object, &sendCQ.object, &recvCQ.object}, shared: o.SRQ != nil}
	if q.shared {
		srq, err := ownObject[*SRQ](p.dev, o.SRQ, "shared receive queue")
		if err != nil {
			return nil, err
		}
		a.SRQ = srq.native
		q.parents = append(q.parents, &srq.object)
	}
	if err := adoptAll(q.parents); err != nil {
		return nil, err
	}
	if err := q.create(&a); err != nil {
		releaseAll(q.parents)
		return nil, err
	}
	q.open("queue pair %d of %s", q.num, p.dev.info.Name)
	return q, nil
}

func (d *Device) checkQPCaps(o rdma.QPOptions) error {
	recvs := d.info.MaxQPWR
	if o.SRQ != nil {
		recvs = 0
	}
	// The device does not report its limit of inline bytes. Creating a queue pair with more fails.
	inline := error(nil)
	if o.Caps.MaxInlineBytes < 0 {
		inline = fmt.Errorf("%d bytes inline: %w", o.Caps.MaxInlineBytes, errdefs.ErrInvalid)
	}
	return errors.Join(
		within("send requests", o.Caps.MaxSendWR, 0, d.info.MaxQPWR),
		within("receive requests", o.Caps.MaxRecvWR, 0, recvs),
		within("entries of a send request", o.Caps.MaxSendSGE, 0, d.info.MaxSGE),
		within("entries of a receive request", o.Caps.MaxRecvSGE, 0, d.info.MaxSGE),
		inline,
	)
}

// create creates the native queue pair and the chains for its requests.
func (q *QP) create(a *ibverbs.QPInitAttr) error {
	api := q.pd.dev.api
	asked := a.Cap
	native, num, errno := api.CreateQP(q.pd.native, a)
	if err := check(errno, "ibv_create_qp", "send_wr=%d recv_wr=%d send_sge=%d recv_sge=%d inline=%d", asked.MaxSendWR,
		asked.MaxRecvWR, asked.MaxSendSGE, asked.MaxRecvSGE, asked.MaxInlineData); err != nil {
		return err
	}
	q.native, q.num, q.caps = native, num, capsOf(a.Cap)
	if q.shared {
		q.caps.MaxRecvWR, q.caps.MaxRecvSGE = 0, 0
	}
	err := q.send.start(q.caps, q.pd.dev.info.MaxSGERead)
	if err == nil {
		err = q.recv.start(q.caps.MaxRecvWR, q.caps.MaxRecvSGE)
	}
	if err != nil {
		return errors.Join(err, q.destroy(), q.freeChains())
	}
	return nil
}

func (q *QP) destroy() error {
	return check(q.pd.dev.api.DestroyQP(q.native), "ibv_destroy_qp", "qp=%d", q.num)
}

func (q *QP) freeChains() error { return errors.Join(q.send.free(), q.recv.free()) }

// Num implements rdma.QP.
func (q *QP) Num() uint32 { return q.num }

// Close implements rdma.QP.
func (q *QP) Close() error {
	return q.close(q.destroy, func() error {
		releaseAll(q.parents)
		return q.freeChains()
	})
}

func nativeCaps(c rdma.QPCaps) ibverbs.QPCap {
	return ibverbs.QPCap{
		MaxSendWR: uint32(c.MaxSendWR), MaxRecvWR: uint32(c.MaxRecvWR),
		MaxSendSGE: uint32(c.MaxSendSGE), MaxRecvSGE: uint32(c.MaxRecvSGE), MaxInlineData: uint32(c.MaxInlineBytes),
	}
}

func capsOf(c ibverbs.QPCap) rdma.QPCaps {
	return rdma.QPCaps{
		MaxSendWR: int(c.MaxSendWR), MaxRecvWR: int(c.MaxRecvWR),
		MaxSendSGE: int(c.MaxSendSGE), MaxRecvSGE: int(c.MaxRecvSGE), MaxInlineBytes: int(c.MaxInlineData),
	}
}
