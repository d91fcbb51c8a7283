// Package endpoint sends and receives the bytes of a connection of baidu_std by RDMA.
//
// An Endpoint has a queue pair and the TCP connection of its handshake. Received bytes arrive in
// blocks of an arena, in the order of sending. Sent bytes are read from registered memory, or
// copied to blocks of another arena. The end of the TCP connection, and bytes on it, end the
// endpoint.
//
// The queue pair has two completion queues, each with a goroutine that polls it until it is empty,
// requests an event, polls again, and then waits.
package endpoint

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/rdma"
	"github.com/kvlane/kvlane/rdma/channel"
	"github.com/kvlane/kvlane/rdma/registry"
	"github.com/kvlane/kvlane/rpc/chain"
	"github.com/kvlane/kvlane/rpc/internal/hello"
)

// DefaultQueue is the default length of the send queue and of the receive queue.
const DefaultQueue = 128

// maxSetup bounds each wait of a new endpoint: for its device, and for its blocks. Half of the time
// that is left for the handshake is a bound too. After a wait without success the connection uses TCP.
const maxSetup = time.Second

// Options are the options of endpoints. All fields but Ready, Queue and Polling are required.
type Options struct {
	// NIC has the memory of Send and Receive, and registered memory that is sent.
	NIC *registry.Registry
	// Port is the NIC's port.
	Port rdma.Port
	// Receive has the blocks that data arrive in, and Send those for data that are not registered.
	// Their keys are local keys of NIC.
	Receive, Send *mem.Arena
	// Wrap returns a chain's block for received bytes. free releases it.
	Wrap func(e mem.Extent, free func()) (*chain.Block, error)
	// Ready returns an error if new endpoints must not be opened now. It may be nil.
	Ready func(ctx context.Context) error
	// Queue is the length of the send queue and of the receive queue. Default: DefaultQueue.
	Queue int
	// Direct offers a second queue pair to kvlane peers, in version 3 of the hello.
	Direct bool
	// Polling means that completions are polled for without waiting for events.
	Polling bool
	// Stall bounds the time of the handshake, and of a wait for the peer to post receives.
	Stall time.Duration
}

// Endpoint is a connection by RDMA. Its methods are safe for concurrent use, except for Send and
// Receive, which must have one caller at a time each.
type Endpoint struct {
	o         Options
	conn      net.Conn
	ch        *channel.Channel
	pair      *channel.Pair
	peerBlock int64   // bytes of a block of the peer
	direct    *direct // nil: none, or not agreed
	ctx       context.Context
	cancel    context.CancelCauseFunc
	// reading is the context of copies of received bytes. It ends with ctx, or with Close if the peer
	// has closed the connection: a message that has arrived before is still read.
	reading     context.Context
	stopReading context.CancelCauseFunc
	work        sync.WaitGroup
	closeOnce   sync.Once // of the queue pair

	mu       sync.Mutex // guards the queue pair's send queue and the fields below
	changed  sync.Cond  // windows, received or err have changed
	win      windows
	sent     []sentMessage // requests without a completion, in order
	blocks   []mem.ArenaBlock
	occupied []bool // by number of a receive: blocks has its block
	spare    []int  // numbers of receives without a block
	received []receivedBlock
	owed     int // receives to post when a block is available
	acking   int // acknowledgements without data that have not completed
	err      error

	sends, recvs, acks, solicited, copied, placed atomic.Int64
}

// Stats are the counters of an endpoint.
type Stats struct {
	Sends, Receives  int64 // messages with data
	Acknowledgements int64 // messages without data, sent
	Solicited        int64 // sends that cause an event at the peer
	CopiedBytes      int64 // sent bytes that were not registered
	PlacedBytes      int64 // bytes of Transfer
}

// sentMessage is a request of the send queue.
type sentMessage struct {
	ack   bool
	holds []func() // release memory after the completion
}

// receivedBlock is a block with received bytes.
type receivedBlock struct {
	index, bytes int
}

// newEndpoint opens a queue pair and posts its receives. It returns ErrBusy or ErrNoMemory if there
// is no memory for them.
func newEndpoint(ctx context.Context, conn net.Conn, o *Options) (_ *Endpoint, err error) {
	e := &Endpoint{o: *o, conn: conn}
	e.changed.L = &e.mu
	if e.o.Queue == 0 {
		e.o.Queue = DefaultQueue
	}
	e.ctx, e.cancel = context.WithCancelCause(context.Background())
	e.reading, e.stopReading = context.WithCancelCause(context.Background())
	defer func() {
		if err != nil {
			e.Close(err)
		}
	}()
	if o.Ready != nil {
		waiting, stop := boundSetup(ctx)
		err = o.Ready(waiting)
		if stop(); err != nil {
			return nil, err
		}
	}
	n := e.o.Queue
	e.ch, err = channel.Open(channel.Options{
		NIC: o.NIC, Connect: rdma.ConnectOptions{Port: o.Port.Number, GIDIndex: o.Port.GIDIndex, MTU: o.Port.MTU}, Depth: n, Receives: n,
		SGEs: maxSGE, OnFailure: e.Fail,
	})
	if err != nil {
		return nil, err
	}
	if e.ch.Depth < n {
		return nil, fmt.Errorf("open endpoint with a queue of %d: the NIC has %d: %w", n, e.ch.Depth, errdefs.ErrNotSupported)
	}
	e.pair = e.ch.Pairs[0]
	e.blocks, e.occupied = make([]mem.ArenaBlock, n), make([]bool, n)
	err = e.pair.QP.Modify(rdma.QPAttr{State: rdma.QPSInit, Port: o.Port.Number, Access: rdma.AccessRemoteWrite})
	waiting, stop := boundSetup(ctx) // begins after the queue pair was opened
	defer stop()
	for i := 0; i < n && err == nil; i++ {
		if e.blocks[i], err = o.Receive.Acquire(waiting); err == nil {
			e.occupied[i] = true
			err = e.post(i)
		}
	}
	return e, err
}

// boundSetup returns a context for a wait of a new endpoint.
func boundSetup(ctx context.Context) (context.Context, context.CancelFunc) {
	limit := maxSetup
	if end, ok := ctx.Deadline(); ok {
		limit = min(limit, time.Until(end)/2)
	}
	return context.WithTimeout(ctx, limit)
}

// hello returns the offer of this side.
func (e *Endpoint) hello(v hello.Version) hello.Hello {
	p := e.pair.Endpoint
	return hello.Hello{
		Version: v, BlockBytes: uint32(e.o.Receive.BlockBytes()), SendQueue: uint32(e.o.Queue), RecvQueue: uint32(e.o.Queue),
		LID: uint32(p.LID), GID: p.GID, QPNum: p.QPNum, Extension: e.extension(),
	}
}

// connect connects the queue pair to that of a peer.
func (e *Endpoint) connect(h *hello.Hello) error {
	q := e.o.Queue
	e.win = newWindows(q, q, int(h.SendQueue), int(h.RecvQueue))
	e.peerBlock = min(int64(h.BlockBytes), e.ch.MessageBytes)
	a := rdma.QPAttr{
		Address: rdma.Address{GID: h.GID, GIDIndex: e.o.Port.GIDIndex, LID: uint16(h.LID), HopLimit: 16},
		PathMTU: rdma.MTU1024, DestQPNum: h.QPNum,
		Timeout: 14, RetryCount: 7,
	}
	for _, a.State = range []rdma.QPState{rdma.QPSRTR, rdma.QPSRTS} {
		if err := e.pair.QP.Modify(a); err != nil {
			return fmt.Errorf("connect queue pair to %d at %s: to %s: %w", h.QPNum, h.GID, a.State, err)
		}
	}
	return e.connectDirect(h)
}

// start starts the goroutines of a connected endpoint.
func (e *Endpoint) start() {
	e.work.Go(func() { e.Fail(e.complete(e.ch.CQ, e.ch.Wait, false, e.sendCompleted)) })
	e.work.Go(func() { e.Fail(e.complete(e.ch.Receives, e.ch.WaitReceive, true, e.receiveCompleted)) })
	if d := e.direct; d != nil {
		e.work.Go(func() { e.Fail(e.complete(d.ch.CQ, d.ch.Wait, false, e.directCompleted)) })
	}
	e.work.Go(e.refill)
	e.work.Go(func() { e.Fail(e.watch()) })
	go func() { // joined by Close
		<-e.ctx.Done()
		e.closeOnce.Do(e.close)
	}()
}

// watch waits for the end of the TCP connection.
func (e *Endpoint) watch() error {
	_ = e.conn.SetDeadline(time.Time{}) // fails on closed connections, as the read does
	var b [1]byte
	if _, err := e.conn.Read(b[:]); err != nil {
		if errors.Is(err, io.EOF) {
			return err
		}
		return fmt.Errorf("wait for the end of the connection: %w", err)
	}
	return fmt.Errorf("bytes on the TCP connection of an RDMA endpoint: %w", errdefs.ErrMismatch)
}

// complete processes the completions of a queue until the endpoint ends.
func (e *Endpoint) complete(cq rdma.CQ, wait func(context.Context) error, solicited bool, handle func(*rdma.WC) error) error {
	var wcs [32]rdma.WC
	armed := false
	for {
		ended := e.ctx.Err() != nil // read first: completions before the end are processed
		n, err := cq.Poll(wcs[:])
		for i := range wcs[:n] {
			if err := wcs[i].Err(); err != nil {
				return err
			}
			if err := handle(&wcs[i]); err != nil {
				return err
			}
		}
		switch {
		case err != nil:
			return err
		case n > 0:
			armed = false
		case ended:
			return context.Cause(e.ctx)
		case e.o.Polling:
			pause()
		case !armed: // completions before this call cause no event, so the next poll follows
			if err := cq.RequestNotify(solicited); err != nil {
				return err
			}
			armed = true
		default:
			if err := wait(e.ctx); err != nil && e.ctx.Err() == nil {
				return err
			}
			armed = false
		}
	}
}

// Fail ends the endpoint with err, and releases its memory when the NIC no longer accesses it. It
// does not wait for that. Bytes that have arrived can still be received. Later calls do nothing.
func (e *Endpoint) Fail(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.err != nil {
		return
	}
	e.err = err
	e.cancel(err)
	if !errors.Is(err, io.EOF) {
		e.stopReading(err)
	}
	e.changed.Broadcast()
	if e.conn != nil {
		_ = e.conn.Close() // the peer notices; its own error does not matter
	}
}

// Err returns the reason of the end, or nil.
func (e *Endpoint) Err() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.err
}

// Stats returns the counters.
func (e *Endpoint) Stats() Stats {
	return Stats{e.sends.Load(), e.recvs.Load(), e.acks.Load(), e.solicited.Load(), e.copied.Load(), e.placed.Load()}
}

// Close ends the endpoint with err, waits until the NIC accesses no memory any more, and releases
// all memory. Chains of received bytes stay valid.
func (e *Endpoint) Close(err error) {
	e.Fail(err)
	e.stopReading(err)
	e.closeOnce.Do(e.close)
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, r := range e.received {
		e.free(r.index)
	}
	e.received = nil
}

// close closes the queue pair and releases all memory except for bytes that were not received.
func (e *Endpoint) close() {
	e.work.Wait()
	if e.ch != nil {
		closeChannel(e.ch)
	}
	if e.direct != nil {
		closeChannel(e.direct.ch)
	}
	e.mu.Lock()
	e.failTransfers()
	waits := make([]bool, len(e.blocks))
	for _, r := range e.received {
		waits[r.index] = true
	}
	for i := range e.blocks {
		if !waits[i] {
			e.free(i)
		}
	}
	sent := e.sent
	e.sent = nil
	e.mu.Unlock()
	for i := range sent {
		sent[i].release()
	}
}

// free releases block i, if there is one. The caller holds mu.
func (e *Endpoint) free(i int) {
	if e.occupied[i] {
		e.occupied[i] = false
		e.blocks[i].Release()
	}
}

func (m *sentMessage) release() {
	for _, f := range m.holds {
		f()
	}
}

// closeChannel moves the queue pair to the error state and closes it. It returns when it accesses
// no memory any more.
func closeChannel(ch *channel.Channel) {
	for _, p := range ch.Pairs {
		_, _ = p.Stop(time.Hour) // to the error state; closing it follows in any case
	}
	for ch.Close() != nil {
		time.Sleep(time.Millisecond)
	}
}
