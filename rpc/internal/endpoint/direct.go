package endpoint

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/rdma"
	"github.com/kvlane/kvlane/rdma/channel"
	"github.com/kvlane/kvlane/rdma/registry"
	"github.com/kvlane/kvlane/rpc/internal/hello"
	"github.com/kvlane/kvlane/rpc/internal/placement"
)

const (
	// directDepth is the number of requests of the second queue pair.
	directDepth = 64
	// directBytes is the maximum length of such a request, so that transfers of several calls take
	// turns, and so do they and messages where a NIC or a device serves requests one after another.
	directBytes = 2 << 20
	// directWindow bounds the bytes of requests in progress, for the same reason. A link of 400
	// Gb/s carries them in 80 µs.
	directWindow = 4 << 20
)

// PeerAccess are the rights to memory that a peer may read and write.
const PeerAccess = rdma.AccessLocalWrite | rdma.AccessRemoteRead | rdma.AccessRemoteWrite

// direct is a second queue pair, by which a server reads and writes the memory of its client. Its
// requests do not take windows of messages. Its fields are guarded by the mutex of the endpoint.
type direct struct {
	ch      *channel.Channel
	pending []directRequest // requests without a completion, in order
	bytes   int64           // of pending
}

type directRequest struct {
	t     *transfer
	bytes int64
}

// transfer is a call of Transfer.
type transfer struct {
	left int // requests without a completion
	err  error
}

// openDirect opens the second queue pair.
func (e *Endpoint) openDirect() error {
	ch, err := channel.Open(channel.Options{NIC: e.o.NIC, Connect: e.directOptions(), Depth: directDepth, SGEs: maxSGE, OnFailure: e.Fail})
	if err == nil {
		e.direct = &direct{ch: ch}
	}
	return err
}

func (e *Endpoint) directOptions() rdma.ConnectOptions {
	return rdma.ConnectOptions{Port: e.o.Port.Number, GIDIndex: e.o.Port.GIDIndex, MTU: e.o.Port.MTU}
}

// extension returns the offer of the second queue pair, or nil if there is none.
func (e *Endpoint) extension() *hello.Extension {
	if e.direct == nil {
		return nil
	}
	p := e.direct.ch.Pairs[0].Endpoint
	return &hello.Extension{QPNum: p.QPNum, Reads: uint32(p.RDepth)}
}

// connectDirect connects the second queue pair, or closes it if the peer has none.
func (e *Endpoint) connectDirect(h *hello.Hello) error {
	switch x := h.Extension; {
	case e.direct == nil:
		return nil
	case x == nil:
		closeChannel(e.direct.ch)
		e.direct = nil
		return nil
	default:
		to := rdma.Endpoint{QPNum: x.QPNum, GID: h.GID, LID: uint16(h.LID), RDepth: uint8(min(x.Reads, 255))}
		return e.direct.ch.Pairs[0].Connect(to)
	}
}

// Direct reports whether both sides have a second queue pair.
func (e *Endpoint) Direct() bool { return e.direct != nil }

// Transfer copies between registered memory of this side and memory of the peer, in the order of
// both lists, whose lengths must be equal: WRRDMARead to local, WRRDMAWrite from it. It returns
// when no byte moves any more, also if ctx ends before. It returns ErrNotSupported without a second
// queue pair, ErrNotFound for local memory that is not registered, and the error of the endpoint.
// It is safe for concurrent use.
func (e *Endpoint) Transfer(ctx context.Context, op rdma.WROpcode, local []mem.Extent, remote *placement.Memory) error {
	if e.direct == nil {
		return fmt.Errorf("place data: the connection has no second queue pair: %w", errdefs.ErrNotSupported)
	}
	want, err := remote.Bytes()
	if err != nil {
		return err
	}
	var held []*registry.Memory
	defer func() {
		for _, m := range held {
			m.Release()
		}
	}()
	have := int64(0)
	for _, x := range local {
		m, err := e.o.NIC.Acquire(x, rdma.AccessLocalWrite)
		if err != nil {
			return fmt.Errorf("place data: %w", err)
		}
		held = append(held, m)
		have += x.Len
	}
	if have != want {
		return fmt.Errorf("place %d bytes in %d: %w", have, want, errdefs.ErrInvalid)
	}
	t := new(transfer)
	stop := context.AfterFunc(ctx, e.wake)
	defer stop()
	err = e.postTransfer(ctx, t, op, local, held, remote)
	e.mu.Lock()
	defer e.mu.Unlock()
	for waits := false; t.left > 0; e.changed.Wait() {
		if ctx.Err() != nil && !waits {
			waits = true
			fence := time.AfterFunc(e.o.Stall, func() {
				e.Fail(fmt.Errorf("a transfer did not end in %v after its call: %w", e.o.Stall, errdefs.ErrBusy))
			})
			defer fence.Stop()
		}
	}
	return errors.Join(err, t.err)
}

// postTransfer posts the requests of a transfer.
func (e *Endpoint) postTransfer(ctx context.Context, t *transfer, op rdma.WROpcode, local []mem.Extent, held []*registry.Memory, remote *placement.Memory) error {
	ch := e.direct.ch
	at, used := 0, int64(0)
	sges := make([]rdma.SGE, 0, maxSGE)
	for r := range remote.Pieces() {
		for r.Bytes > 0 {
			n := int64(0)
			limit := min(int64(r.Bytes), ch.MessageBytes, directBytes)
			for sges = sges[:0]; n < limit && len(sges) < ch.MaxSGE(op); {
				if used == local[at].Len {
					at, used = at+1, 0
					continue
				}
				k := min(limit-n, local[at].Len-used)
				info := held[at].Info()
				sges = append(sges, rdma.SGE{Addr: held[at].Addr(local[at].Sub(used, k)), Length: uint32(k), LKey: info.LKey})
				n, used = n+k, used+k
			}
			wr := rdma.SendWR{Opcode: op, Flags: rdma.SendSignaled, RKey: r.Key, RemoteAddr: r.Addr, SGEs: sges}
			if err := e.postDirect(ctx, t, wr); err != nil {
				return err
			}
			r.Addr, r.Bytes = r.Addr+uint64(n), r.Bytes-uint64(n)
		}
	}
	return nil
}

// postDirect posts a request when the second queue pair has space for it.
func (e *Endpoint) postDirect(ctx context.Context, t *transfer, wr rdma.SendWR) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	d := e.direct
	n := wr.Bytes()
	for (len(d.pending) >= d.ch.Depth || d.bytes > 0 && d.bytes+n > directWindow) && e.err == nil && ctx.Err() == nil {
		e.changed.Wait()
	}
	switch {
	case e.err != nil:
		return e.err
	case ctx.Err() != nil:
		return fmt.Errorf("place data: %w", context.Cause(ctx))
	}
	if _, err := d.ch.Pairs[0].Post([]rdma.SendWR{wr}); err != nil {
		return fmt.Errorf("place data: %w", err)
	}
	d.pending = append(d.pending, directRequest{t, n})
	d.bytes += n
	t.left++
	e.placed.Add(n)
	return nil
}

// directCompleted processes a completion of the second queue pair.
func (e *Endpoint) directCompleted(wc *rdma.WC) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	d := e.direct
	_, _, over := d.ch.Completed(wc)
	for _, r := range d.pending[:over] {
		r.t.left--
		d.bytes -= r.bytes
	}
	d.pending = d.pending[over:]
	e.changed.Broadcast()
	return nil
}

// failTransfers ends the transfers in progress, after the queue pair was closed. The caller holds
// mu.
func (e *Endpoint) failTransfers() {
	if e.direct == nil {
		return
	}
	for _, r := range e.direct.pending {
		r.t.left--
		r.t.err = e.err
	}
	e.direct.pending, e.direct.bytes = nil, 0
	e.changed.Broadcast()
}
