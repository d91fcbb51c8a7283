package ibv

import (
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/sys/ibverbs"
	"github.com/kvlane/kvlane/rdma"
)

// pollBatch is the maximum number of completions of one library call. At this size the cost of the
// call is negligible.
const pollBatch = 128

// CQ implements rdma.CQ.
type CQ struct {
	object
	dev     *Device
	channel *CompChannel // nil without events
	native  ibverbs.CQ
	entries int

	mu     sync.Mutex
	buffer *ibverbs.WCArray // buffer for polled completions; guarded by mu
}

// CreateCQ implements rdma.Device.
func (d *Device) CreateCQ(o rdma.CQOptions) (rdma.CQ, error) {
	q, err := d.createCQ(o)
	if err != nil {
		return nil, fmt.Errorf("create completion queue of %s: %w", d.what, err)
	}
	return q, nil
}

func (d *Device) createCQ(o rdma.CQOptions) (*CQ, error) {
	q := &CQ{dev: d}
	switch {
	case o.Entries < 1 || o.Entries > d.info.MaxCQE:
		return nil, fmt.Errorf("%d entries: must be 1 to %d: %w", o.Entries, d.info.MaxCQE, errdefs.ErrInvalid)
	case o.Vector < 0 || o.Vector >= d.vectors:
		return nil, fmt.Errorf("completion vector %d: must be 0 to %d: %w", o.Vector, d.vectors-1, errdefs.ErrInvalid)
	}
	var channel ibverbs.CompChannel
	if o.Channel != nil {
		var err error
		if q.channel, err = ownObject[*CompChannel](d, o.Channel, "completion channel"); err != nil {
			return nil, err
		}
		channel = q.channel.native
	}
	parents := q.parents()
	if err := adoptAll(parents); err != nil {
		return nil, err
	}
	buffer, err := ibverbs.NewWCArray(min(o.Entries, pollBatch))
	if err != nil {
		releaseAll(parents)
		return nil, err
	}
	native, got, errno := d.api.CreateCQ(d.ctx, o.Entries, channel, o.Vector)
	if err := check(errno, "ibv_create_cq", "entries=%d vector=%d", o.Entries, o.Vector); err != nil {
		releaseAll(parents)
		return nil, errors.Join(err, buffer.Free())
	}
	q.native, q.entries, q.buffer = native, got, buffer
	q.open("completion queue of %s", d.info.Name)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.cqs[native] = q // must precede RequestNotify, which can cause an event
	return q, nil
}

func (q *CQ) parents() []*object {
	parents := []*object{&q.dev.object}
	if q.channel != nil {
		parents = append(parents, &q.channel.object)
	}
	return parents
}

// Poll implements rdma.CQ.
func (q *CQ) Poll(wcs []rdma.WC) (int, error) {
	if err := q.beginCall(); err != nil {
		return 0, err
	}
	defer q.endCall()
	q.mu.Lock()
	defer q.mu.Unlock()
	native := q.buffer.WCs()
	for n := 0; ; {
		want := min(len(wcs)-n, len(native))
		if want == 0 {
			return n, nil
		}
		got := q.dev.api.PollCQ(q.native, q.buffer, want)
		if got < 0 {
			return n, fmt.Errorf("poll %s: %w", q.what, rdma.NewError("ibv_poll_cq", "", unix.EIO, fmt.Sprintf("answered %d", got)))
		}
		for i := range native[:got] {
			wcs[n+i] = completion(&native[i])
		}
		n += got
		if got < want {
			return n, nil
		}
	}
}

func completion(w *ibverbs.WC) rdma.WC {
	wc := rdma.WC{
		WRID:      w.WRID,
		Status:    rdma.WCStatus(w.Status),
		Opcode:    rdma.WCOpcode(w.Opcode),
		VendorErr: w.VendorErr,
		ByteLen:   w.ByteLen,
		QPNum:     w.QPNum,
		Flags:     rdma.WCFlags(w.Flags),
	}
	if wc.Flags&rdma.WCWithImm != 0 {
		wc.Imm = hostOrder32(w.Imm)
	}
	return wc
}

// RequestNotify implements rdma.CQ.
func (q *CQ) RequestNotify(solicitedOnly bool) error {
	if err := q.beginCall(); err != nil {
		return err
	}
	defer q.endCall()
	if q.channel == nil {
		return fmt.Errorf("request event of %s: it has no channel: %w", q.what, errdefs.ErrInvalid)
	}
	if errno := q.dev.api.ReqNotifyCQ(q.native, solicitedOnly); errno != 0 {
		return fmt.Errorf("request event of %s: %w", q.what, check(errno, "ibv_req_notify_cq", "solicited=%t", solicitedOnly))
	}
	return nil
}

// Entries implements rdma.CQ.
func (q *CQ) Entries() int { return q.entries }

// Close implements rdma.CQ.
func (q *CQ) Close() error {
	return q.close(func() error {
		// ibv_destroy_cq waits until all events of the queue are acknowledged. Until then, event
		// readers look up the queue in the map.
		return check(q.dev.api.DestroyCQ(q.native), "ibv_destroy_cq", "entries=%d", q.entries)
	}, func() error {
		q.dev.mu.Lock()
		if q.dev.cqs[q.native] == q { // otherwise another queue now has this address
			delete(q.dev.cqs, q.native)
		}
		q.dev.mu.Unlock()
		releaseAll(q.parents())
		return q.buffer.Free()
	})
}

func (q *CQ) deviceOf() *Device { return q.dev }
