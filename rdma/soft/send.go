package soft

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/rdma"
)

// sendWQE is an entry of a send queue. The poster writes it before it publishes its position.
// Afterwards the engine owns it.
type sendWQE struct {
	wrid       uint64
	remoteAddr uint64
	sges       []rdma.SGE // empty with SendInline
	rkey       uint32
	imm        uint32
	bytes      int64
	opcode     rdma.WROpcode
	flags      rdma.SendFlags

	found
}

// found is the part of a sendWQE that start sets.
type found struct {
	asked      bool // the fault plan was applied
	received   bool // the request uses slot of peer's receive queue
	peerFails  bool // the peer refused the request and enters the error state
	status     rdma.WCStatus
	recvStatus rdma.WCStatus
	slot       uint32
	peer       *qp   // set if received or peerFails
	cause      error // reason for status
}

// hasImm reports whether requests of that opcode carry immediate data.
func hasImm(o rdma.WROpcode) bool {
	return o == rdma.WRRDMAWriteWithImm || o == rdma.WRSendWithImm
}

// receives reports whether requests of that opcode consume a receive of the peer.
func receives(o rdma.WROpcode) bool {
	return o != rdma.WRRDMAWrite && o != rdma.WRRDMARead
}

func (q *qp) PostSend(wrs []rdma.SendWR) (int, error) {
	const call = "soft_post_send"
	n, err := q.postSend(call, wrs)
	if n > 0 {
		q.engine().notify(q)
	}
	if err != nil {
		return n, fmt.Errorf("post %d requests on queue pair %d: %w", len(wrs), q.num, err)
	}
	return n, nil
}

func (q *qp) postSend(call string, wrs []rdma.SendWR) (int, error) {
	if err := q.dev().fault(OpPostSend, call); err != nil {
		return 0, err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if err := q.check(call); err != nil {
		return 0, err
	}
	if s := q.attr.State; s != rdma.QPSRTS && s != rdma.QPSErr {
		return 0, rdma.NewPostError(call, "state="+s.String(), unix.EINVAL, "the queue pair cannot send")
	}
	tail := q.tail.Load()
	used := tail - q.freed.Load()
	for i := range wrs {
		w := &wrs[i]
		if used == uint64(q.caps.MaxSendWR) {
			// Check again, because completions may have been polled meanwhile.
			if used = tail - q.freed.Load(); used == uint64(q.caps.MaxSendWR) {
				q.tail.Store(tail)
				return i, rdma.NewPostError(call, fmt.Sprintf("wr_id=%#x", w.WRID), unix.ENOMEM, fmt.Sprintf("all %d entries are in use", q.caps.MaxSendWR))
			}
		}
		if err := q.put(call, w, tail); err != nil {
			q.tail.Store(tail)
			return i, err
		}
		tail++
		used++
	}
	q.tail.Store(tail)
	return len(wrs), nil
}

// put writes w to the entry at position pos.
func (q *qp) put(call string, w *rdma.SendWR, pos uint64) error {
	refuse := func(text string) error {
		return rdma.NewPostError(call, fmt.Sprintf("wr_id=%#x, opcode=%s, flags=%s", w.WRID, w.Opcode, w.Flags), unix.EINVAL, text)
	}
	if w.Opcode > rdma.WRRDMARead {
		return refuse("unknown opcode")
	}
	i := pos & q.mask
	bytes := w.Bytes()
	if w.Flags&rdma.SendInline != 0 {
		if w.Opcode == rdma.WRRDMARead || len(w.SGEs) > 0 || len(w.Inline) > q.caps.MaxInlineBytes {
			return refuse(fmt.Sprintf("inline payloads are of up to %d bytes, of sends and writes without scatter-gather entries", q.caps.MaxInlineBytes))
		}
		if bytes = int64(len(w.Inline)); bytes > 0 {
			copy(q.inline.Bytes()[int(i)*q.caps.MaxInlineBytes:], w.Inline)
		}
	} else if n := len(w.SGEs); n > q.caps.MaxSendSGE || w.Opcode == rdma.WRRDMARead && n > q.dev().nic.info.MaxSGERead {
		return refuse(fmt.Sprintf("%d scatter-gather entries: must be at most %d", n, q.caps.MaxSendSGE))
	}
	flags := w.Flags
	if q.signalAll {
		flags |= rdma.SendSignaled
	}
	e := &q.sq[i]
	*e = sendWQE{
		wrid: w.WRID, remoteAddr: w.RemoteAddr, rkey: w.RKey, imm: w.Imm, opcode: w.Opcode, flags: flags,
		bytes: bytes, sges: append(e.sges[:0], w.SGEs...),
	}
	return nil
}
