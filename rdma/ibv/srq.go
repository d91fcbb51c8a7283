package ibv

import (
	"errors"
	"fmt"
	"sync"
	"syscall"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/sys/ibverbs"
	"github.com/kvlane/kvlane/rdma"
)

// SRQ implements rdma.SRQ.
type SRQ struct {
	object
	pd     *PD
	native ibverbs.SRQ
	caps   rdma.SRQCaps
	recv   receiver
}

// CreateSRQ implements rdma.PD.
func (p *PD) CreateSRQ(caps rdma.SRQCaps) (rdma.SRQ, error) {
	q, err := p.createSRQ(caps)
	if err != nil {
		return nil, fmt.Errorf("create shared receive queue of %s: %w", p.what, err)
	}
	return q, nil
}

func (p *PD) createSRQ(caps rdma.SRQCaps) (*SRQ, error) {
	info := &p.dev.info
	err := errors.Join(within("requests", caps.MaxWR, 1, info.MaxSRQWR), within("entries of a request", caps.MaxSGE, 0, info.MaxSRQSGE))
	if err != nil {
		return nil, err
	}
	if err := p.adopt(); err != nil {
		return nil, err
	}
	a := ibverbs.SRQAttr{MaxWR: uint32(caps.MaxWR), MaxSGE: uint32(caps.MaxSGE)}
	native, errno := p.dev.api.CreateSRQ(p.native, &a)
	if err := check(errno, "ibv_create_srq", "wr=%d sge=%d", caps.MaxWR, caps.MaxSGE); err != nil {
		p.release()
		return nil, err
	}
	q := &SRQ{pd: p, native: native, caps: rdma.SRQCaps{MaxWR: int(a.MaxWR), MaxSGE: int(a.MaxSGE)}}
	if err := q.recv.start(q.caps.MaxWR, q.caps.MaxSGE); err != nil {
		err = errors.Join(err, check(p.dev.api.DestroySRQ(native), "ibv_destroy_srq", "wr=%d", caps.MaxWR))
		p.release()
		return nil, err
	}
	q.open("shared receive queue of %s", p.dev.info.Name)
	return q, nil
}

// within returns an error unless least <= v <= most.
func within(what string, v, least, most int) error {
	if v < least || v > most {
		return fmt.Errorf("%d %s: must be %d to %d: %w", v, what, least, most, errdefs.ErrInvalid)
	}
	return nil
}

// PostRecv implements rdma.SRQ.
func (q *SRQ) PostRecv(wrs []rdma.RecvWR) (int, error) {
	if err := q.beginCall(); err != nil {
		return 0, err
	}
	defer q.endCall()
	n, err := q.recv.post(wrs, "ibv_post_srq_recv", func(c *ibverbs.RecvChain) (int, syscall.Errno) {
		return q.pd.dev.api.PostSRQRecv(q.native, c)
	})
	if err != nil {
		return n, fmt.Errorf("post to %s: %w", q.what, err)
	}
	return n, nil
}

// Caps implements rdma.SRQ.
func (q *SRQ) Caps() rdma.SRQCaps { return q.caps }

// Close implements rdma.SRQ.
func (q *SRQ) Close() error {
	return q.close(func() error {
		return check(q.pd.dev.api.DestroySRQ(q.native), "ibv_destroy_srq", "wr=%d", q.caps.MaxWR)
	}, func() error {
		q.pd.release()
		return q.recv.free()
	})
}

func (q *SRQ) deviceOf() *Device { return q.pd.dev }

// receiver posts receives of a queue pair or a shared queue.
type receiver struct {
	mu     sync.Mutex
	chain  *ibverbs.RecvChain // guarded by mu
	maxSGE int
}

func (r *receiver) start(depth, sges int) error {
	var err error
	r.chain, err = ibverbs.NewRecvChain(max(depth, 1), sges)
	r.maxSGE = sges
	return err
}

func (r *receiver) free() error {
	if r.chain == nil {
		return nil
	}
	return r.chain.Free()
}

// post posts wrs with one call of native. name is the C function's name, for errors. It holds mu
// during the call because the chain is shared and requests of concurrent calls must not be
// interleaved.
func (r *receiver) post(wrs []rdma.RecvWR, name string, native func(*ibverbs.RecvChain) (int, syscall.Errno)) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.chain.Reset()
	refused := r.fill(wrs)
	n, errno := native(r.chain)
	if errno != 0 {
		return n, rdma.NewPostError(name, fmt.Sprintf("wr_id=%#x", wrs[n].WRID), errno, "")
	}
	return n, refused
}

// fill writes wrs to the chain. If it stops early, it returns the error of the first request that
// it did not write.
func (r *receiver) fill(wrs []rdma.RecvWR) error {
	for i := range wrs {
		if n := len(wrs[i].SGEs); n > r.maxSGE {
			return fmt.Errorf("request %#x has %d entries: must be at most %d: %w", wrs[i].WRID, n, r.maxSGE, errdefs.ErrInvalid)
		}
		w, sges := r.chain.Add(len(wrs[i].SGEs))
		if w == nil {
			return fmt.Errorf("the queue holds %d requests: %w", i, errdefs.ErrBusy)
		}
		w.WRID = wrs[i].WRID
		copySGEs(sges, wrs[i].SGEs)
	}
	return nil
}

func copySGEs(to []ibverbs.SGE, from []rdma.SGE) {
	for i := range from {
		to[i] = ibverbs.SGE(from[i])
	}
}
