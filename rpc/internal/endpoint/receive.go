package endpoint

import (
	"context"
	"fmt"
	"runtime"
	"time"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/rdma"
	"github.com/kvlane/kvlane/rpc/chain"
)

const (
	// copyBytes is the length up to which received host bytes are copied, so that a short message
	// does not occupy a block.
	copyBytes = 4 << 10
	// refillDelay is the delay after a failure to get a block.
	refillDelay = 10 * time.Millisecond
)

func pause() { runtime.Gosched() }

// post posts the receive of block i.
func (e *Endpoint) post(i int) error {
	x, b := e.blocks[i].Extent(), &e.blocks[i]
	_, err := e.pair.QP.PostRecv([]rdma.RecvWR{{WRID: uint64(i), SGEs: []rdma.SGE{{Addr: rdma.OwnAddr(x), Length: uint32(x.Len), LKey: b.Key()}}}})
	if err != nil {
		return fmt.Errorf("post a receive: %w", err)
	}
	return nil
}

// receiveCompleted processes the completion of a receive.
func (e *Endpoint) receiveCompleted(wc *rdma.WC) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if wc.Flags&rdma.WCWithImm == 0 {
		return fmt.Errorf("message without immediate data: %w", errdefs.ErrMismatch)
	}
	if !e.win.acked(int(wc.Imm)) {
		return fmt.Errorf("acknowledgement of %d receives, of %d sent: %w", wc.Imm, e.win.localCap-e.win.remote, errdefs.ErrMismatch)
	}
	if e.win.wakes() {
		e.changed.Broadcast()
	}
	if wc.ByteLen == 0 { // an acknowledgement, which is not acknowledged
		return e.post(int(wc.WRID))
	}
	e.recvs.Add(1)
	e.received = append(e.received, receivedBlock{int(wc.WRID), int(wc.ByteLen)})
	e.changed.Broadcast()
	return nil
}

// Receive waits for the next bytes, for at most limit if it is not zero, and appends them to c.
// Its blocks belong to the chain, and are posted again, in the form of other blocks, only after
// Receive has returned them: the peer cannot send more than the receive queue has. It returns
// ErrBusy with a cause after the limit, and the error of the endpoint after its end.
func (e *Endpoint) Receive(c *chain.Chain, limit time.Duration) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	var end time.Time
	if limit > 0 && len(e.received) == 0 {
		end = time.Now().Add(limit)
		t := time.AfterFunc(limit, e.wake)
		defer t.Stop()
	}
	for len(e.received) == 0 {
		switch {
		case e.err != nil:
			return e.err
		case !end.IsZero() && !time.Now().Before(end):
			return fmt.Errorf("receive: no bytes for %v: %w: %w", limit, errdefs.ErrBusy, context.DeadlineExceeded)
		}
		e.changed.Wait()
	}
	list := e.received
	e.received = nil
	for _, r := range list {
		if err := e.take(c, r); err != nil {
			return err
		}
	}
	return nil
}

func (e *Endpoint) wake() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.changed.Broadcast()
}

// take appends received bytes to c and posts a receive for them. The caller holds mu.
func (e *Endpoint) take(c *chain.Chain, r receivedBlock) error {
	b := e.blocks[r.index]
	x := b.Extent().Sub(0, int64(r.bytes))
	if m := x.Bytes(); m != nil && len(m) <= copyBytes {
		short := chain.Get(len(m))
		copy(short.Memory(), m)
		c.AppendBlock(short, int64(len(m)))
		if e.err != nil {
			e.free(r.index)
			return nil
		}
		return e.repost(r.index)
	}
	block, err := e.o.Wrap(x, b.Release)
	if err != nil {
		return err
	}
	e.occupied[r.index] = false
	c.AppendBlock(block, int64(r.bytes))
	if e.err != nil {
		return nil
	}
	if next, err := e.o.Receive.Acquire(ended); err == nil {
		e.blocks[r.index], e.occupied[r.index] = next, true
		return e.repost(r.index)
	}
	e.spare = append(e.spare, r.index)
	e.owed++
	e.changed.Broadcast()
	return nil
}

// ended is a context that has ended, for calls that must not wait.
var ended = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// repost posts block i again. The caller holds mu.
func (e *Endpoint) repost(i int) error {
	if err := e.post(i); err != nil {
		return err
	}
	e.win.posted()
	return e.acknowledge()
}

// acknowledge reports receives that were posted again, if that is due. At most reserved such
// messages are in progress, so that they fit into the send queue. The caller holds mu.
func (e *Endpoint) acknowledge() error {
	if !e.win.due() || e.acking >= reserved {
		return nil
	}
	wr := rdma.SendWR{Opcode: rdma.WRSendWithImm, Flags: rdma.SendSolicited | rdma.SendSignaled, Imm: uint32(e.win.acknowledge())}
	if _, err := e.pair.Post([]rdma.SendWR{wr}); err != nil {
		return fmt.Errorf("acknowledge receives: %w", err)
	}
	e.sent = append(e.sent, sentMessage{ack: true})
	e.acking++
	e.acks.Add(1)
	return nil
}

// refill posts the receives for which no block was available. A failure to get a block is not the
// end of the endpoint: the peer waits.
func (e *Endpoint) refill() {
	for {
		e.mu.Lock()
		for e.owed == 0 && e.err == nil {
			e.changed.Wait()
		}
		err := e.err
		e.mu.Unlock()
		if err != nil {
			return
		}
		b, err := e.o.Receive.Acquire(e.ctx)
		if err != nil {
			select {
			case <-e.ctx.Done():
			case <-time.After(refillDelay):
			}
			continue
		}
		e.mu.Lock()
		i := e.spare[len(e.spare)-1]
		e.spare = e.spare[:len(e.spare)-1]
		e.owed--
		e.blocks[i], e.occupied[i] = b, true
		if err = e.err; err == nil {
			err = e.repost(i)
		}
		e.mu.Unlock()
		if err != nil {
			e.Fail(err)
			return
		}
	}
}
