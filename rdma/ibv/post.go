package ibv

import (
	"fmt"
	"sync"
	"syscall"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/sys/ibverbs"
	"github.com/kvlane/kvlane/rdma"
)

// sender posts requests to the send queue of a queue pair.
type sender struct {
	mu         sync.Mutex
	chain      *ibverbs.SendChain // guarded by mu
	maxSGE     int
	maxSGERead int
	maxInline  int
}

func (s *sender) start(caps rdma.QPCaps, maxSGERead int) error {
	var err error
	s.chain, err = ibverbs.NewSendChain(max(caps.MaxSendWR, 1), caps.MaxSendSGE, caps.MaxInlineBytes)
	s.maxSGE, s.maxSGERead, s.maxInline = caps.MaxSendSGE, min(caps.MaxSendSGE, maxSGERead), caps.MaxInlineBytes
	return err
}

func (s *sender) free() error {
	if s.chain == nil {
		return nil
	}
	return s.chain.Free()
}

// PostSend implements rdma.QP.
func (q *QP) PostSend(wrs []rdma.SendWR) (int, error) {
	if err := q.beginCall(); err != nil {
		return 0, err
	}
	defer q.endCall()
	// Providers accept requests for an unconnected queue pair and never execute them.
	if s := rdma.QPState(q.state.Load()); s != rdma.QPSRTS && s != rdma.QPSErr {
		return 0, fmt.Errorf("post to %s: it is in state %s: %w", q.what, s, errdefs.ErrInvalid)
	}
	n, err := q.postSend(wrs)
	if err != nil {
		return n, fmt.Errorf("post to %s: %w", q.what, err)
	}
	return n, nil
}

// postSend posts wrs with one call. It holds mu during the call because the chain is shared and
// requests of concurrent calls must not be interleaved.
func (q *QP) postSend(wrs []rdma.SendWR) (int, error) {
	s := &q.send
	s.mu.Lock()
	defer s.mu.Unlock()
	s.chain.Reset()
	refused := s.fill(wrs)
	n, errno := q.pd.dev.api.PostSend(q.native, s.chain)
	if errno != 0 {
		w := &wrs[n]
		return n, rdma.NewPostError("ibv_post_send", fmt.Sprintf("wr_id=%#x opcode=%s bytes=%d", w.WRID, w.Opcode, w.Bytes()), errno, "")
	}
	return n, refused
}

// fill writes wrs to the chain. If it stops early, it returns the error of the first request that
// it did not write.
func (s *sender) fill(wrs []rdma.SendWR) error {
	for i := range wrs {
		if err := s.check(&wrs[i]); err != nil {
			return err
		}
		w, sges := s.add(&wrs[i])
		if w == nil {
			return fmt.Errorf("the queue holds %d requests: %w", i, errdefs.ErrBusy)
		}
		copySGEs(sges, wrs[i].SGEs)
		w.WRID, w.Opcode, w.Flags = wrs[i].WRID, int32(wrs[i].Opcode), uint32(wrs[i].Flags)
		w.Imm, w.RemoteAddr, w.RKey = hostOrder32(wrs[i].Imm), wrs[i].RemoteAddr, wrs[i].RKey
	}
	return nil
}

func (s *sender) add(w *rdma.SendWR) (*ibverbs.SendWR, []ibverbs.SGE) {
	if w.Flags&rdma.SendInline != 0 {
		return s.chain.AddInline(w.Inline), nil
	}
	return s.chain.Add(len(w.SGEs))
}

// check returns an error for an invalid request that some providers would accept.
func (s *sender) check(w *rdma.SendWR) error {
	entries, inline := s.maxSGE, 0
	switch {
	case w.Opcode > rdma.WRRDMARead:
		return fmt.Errorf("request %#x: operation %s: %w", w.WRID, w.Opcode, errdefs.ErrInvalid)
	case w.Opcode == rdma.WRRDMARead:
		if w.Flags&rdma.SendInline != 0 {
			return fmt.Errorf("request %#x: %s inline: %w", w.WRID, w.Opcode, errdefs.ErrInvalid)
		}
		entries = s.maxSGERead
	case w.Flags&rdma.SendInline != 0:
		entries, inline = 0, s.maxInline
	}
	if len(w.SGEs) > entries {
		return fmt.Errorf("request %#x: %d entries: must be at most %d: %w", w.WRID, len(w.SGEs), entries, errdefs.ErrInvalid)
	}
	if len(w.Inline) > inline {
		return fmt.Errorf("request %#x: %d bytes inline: must be at most %d: %w", w.WRID, len(w.Inline), inline, errdefs.ErrInvalid)
	}
	return nil
}

// PostRecv implements rdma.QP.
func (q *QP) PostRecv(wrs []rdma.RecvWR) (int, error) {
	if err := q.beginCall(); err != nil {
		return 0, err
	}
	defer q.endCall()
	if q.shared {
		return 0, fmt.Errorf("post to %s: its receives come from a shared queue: %w", q.what, errdefs.ErrInvalid)
	}
	if s := rdma.QPState(q.state.Load()); s == rdma.QPSReset {
		return 0, fmt.Errorf("post to %s: it is in state %s: %w", q.what, s, errdefs.ErrInvalid)
	}
	n, err := q.recv.post(wrs, "ibv_post_recv", q.postRecv)
	if err != nil {
		return n, fmt.Errorf("post to %s: %w", q.what, err)
	}
	return n, nil
}

func (q *QP) postRecv(c *ibverbs.RecvChain) (int, syscall.Errno) {
	return q.pd.dev.api.PostRecv(q.native, c)
}
