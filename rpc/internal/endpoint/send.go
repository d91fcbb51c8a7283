package endpoint

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/rdma"
)

// maxSGE is the number of scatter-gather entries of a message. NICs may have fewer.
const maxSGE = 16

// Piece is a part of the bytes to send: Bytes, which are copied, or registered memory, which must
// not change until Done is called.
type Piece struct {
	Bytes  []byte
	Extent mem.Extent // used if Bytes is nil
	Done   func()     // called when the NIC no longer reads the memory; may be nil
}

// builder cuts pieces into messages of at most a block of the peer.
type builder struct {
	e     *Endpoint
	sges  []rdma.SGE
	bytes int64
	holds []func()

	block mem.ArenaBlock // for bytes that are not registered
	used  int64          // of block
	has   bool           // block is acquired
}

// Send sends the pieces in order. It returns when they are posted, after waiting for the peer to
// post receives. It calls Done of all pieces in any case: those that were posted when they have
// completed. After an error the endpoint is not usable. It returns ErrNotFound for memory that is
// not registered with the NIC.
func (e *Endpoint) Send(pieces []Piece) error {
	b := builder{e: e}
	for i := range pieces {
		p := &pieces[i]
		err := b.add(p, i == len(pieces)-1)
		if err != nil {
			b.drop()
			for k := range pieces[i:] {
				pieces[i+k].done()
			}
			e.Fail(err)
			return err
		}
	}
	return nil
}

func (p *Piece) done() {
	if p.Done != nil {
		p.Done()
	}
}

// drop releases memory that was not posted.
func (b *builder) drop() {
	if b.has {
		b.block.Release()
	}
	for _, f := range b.holds {
		f()
	}
}

// add sends a piece. Its Done is called by the builder or by a completion if add succeeds.
func (b *builder) add(p *Piece, last bool) error {
	if p.Bytes != nil || p.Extent.Len == 0 {
		if err := b.copy(p.Bytes); err != nil {
			return err
		}
		b.hold(p)
		return b.flushIf(last)
	}
	m, err := b.e.o.NIC.Acquire(p.Extent, 0)
	if err != nil {
		return fmt.Errorf("send %d bytes of the %s: %w", p.Extent.Len, p.Extent.Region, err)
	}
	info := m.Info()
	addr := m.Addr(p.Extent)
	for left := p.Extent.Len; left > 0; {
		n := min(left, b.e.peerBlock-b.bytes)
		b.sges = append(b.sges, rdma.SGE{Addr: addr, Length: uint32(n), LKey: info.LKey})
		b.bytes += n
		addr += uint64(n)
		if left -= n; left == 0 {
			b.holds = append(b.holds, m.Release)
			b.hold(p)
			return b.flushIf(last)
		}
		if err := b.flushIf(false); err != nil {
			m.Release()
			return err
		}
	}
	return nil
}

// hold moves the Done of a piece to the current message.
func (b *builder) hold(p *Piece) {
	if p.Done != nil {
		b.holds, p.Done = append(b.holds, p.Done), nil
	}
}

// copy copies bytes to registered memory and sends them.
func (b *builder) copy(p []byte) error {
	for len(p) > 0 {
		if !b.has {
			ctx, cancel := context.WithTimeout(b.e.ctx, b.e.o.Stall)
			block, err := b.e.o.Send.Acquire(ctx)
			cancel()
			if err != nil {
				return cmp.Or(b.e.Err(), err) // the end of the endpoint interrupts the wait
			}
			b.block, b.used, b.has = block, 0, true
		}
		x := b.block.Extent()
		n := min(int64(len(p)), b.e.peerBlock-b.bytes, x.Len-b.used)
		x = x.Sub(b.used, n)
		copy(x.Bytes(), p)
		b.e.copied.Add(n)
		b.sges = append(b.sges, rdma.SGE{Addr: rdma.OwnAddr(x), Length: uint32(n), LKey: b.block.Key()})
		b.used, b.bytes = b.used+n, b.bytes+n
		p = p[n:]
		if b.used == b.block.Extent().Len {
			b.releaseBlock()
		}
		if len(p) > 0 {
			if err := b.flushIf(false); err != nil {
				return err
			}
		}
	}
	return nil
}

// releaseBlock releases the block when the current message has completed.
func (b *builder) releaseBlock() {
	b.holds, b.has = append(b.holds, b.block.Release), false
}

// flushIf posts the current message if it is full or the last one.
func (b *builder) flushIf(last bool) error {
	if !last && b.bytes < b.e.peerBlock && len(b.sges) < b.e.ch.MaxSGE(rdma.WRSend) {
		return nil
	}
	if last && b.has {
		b.releaseBlock()
	}
	if b.bytes == 0 { // nothing is left for a completion to release
		b.drop()
		b.holds = nil
		return nil
	}
	if err := b.e.send(b.sges, b.bytes, last, b.holds); err != nil {
		return err
	}
	b.sges, b.bytes, b.holds = b.sges[:0], 0, nil
	return nil
}

// send posts a message when both windows are open. The holds belong to it if it succeeds.
func (e *Endpoint) send(sges []rdma.SGE, bytes int64, last bool, holds []func()) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.win.open() && e.err == nil {
		end := time.Now().Add(e.o.Stall)
		t := time.AfterFunc(e.o.Stall, e.wake)
		defer t.Stop()
		for !e.win.wakes() && e.err == nil {
			if !time.Now().Before(end) {
				return fmt.Errorf("send: the peer posted no receives for %v: %w: %w", e.o.Stall, errdefs.ErrBusy, context.DeadlineExceeded)
			}
			e.changed.Wait()
		}
	}
	if e.err != nil {
		return e.err
	}
	acks, solicited, signaled := e.win.send(bytes, last)
	wr := rdma.SendWR{Opcode: rdma.WRSendWithImm, Imm: uint32(acks), SGEs: sges}
	if solicited {
		wr.Flags |= rdma.SendSolicited
		e.solicited.Add(1)
	}
	if signaled {
		wr.Flags |= rdma.SendSignaled
	}
	if _, err := e.pair.Post([]rdma.SendWR{wr}); err != nil {
		return fmt.Errorf("send %d bytes: %w", bytes, err)
	}
	e.sends.Add(1)
	e.sent = append(e.sent, sentMessage{holds: holds})
	return nil
}

// sendCompleted processes the completion of a send, and of the unsignaled ones before it.
func (e *Endpoint) sendCompleted(wc *rdma.WC) error {
	e.mu.Lock()
	_, _, over := e.ch.Completed(wc)
	done := e.sent[:over]
	e.sent = e.sent[over:]
	n := 0
	for i := range done {
		if !done[i].ack {
			n++
		}
	}
	e.win.completed(n)
	e.acking -= len(done) - n
	err := e.acknowledge()
	if e.win.wakes() {
		e.changed.Broadcast()
	}
	e.mu.Unlock()
	for i := range done {
		done[i].release()
		done[i] = sentMessage{}
	}
	return err
}
