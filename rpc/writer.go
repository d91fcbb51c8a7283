package rpc

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/rpc/chain"
	"github.com/kvlane/kvlane/rpc/internal/frame"
	"github.com/kvlane/kvlane/wire"
)

const (
	// inHead is the length up to which a message is copied to the buffer of header and meta.
	inHead = 512
	// flushBytes is the number of bytes after which a write begins even if more frames wait.
	flushBytes = 1 << 20
	// soonBytes is the length up to which write writes frames itself, and soonWait the time after
	// which another goroutine goes on.
	soonBytes = 64 << 10
	soonWait  = 20 * time.Millisecond
	// crowdedWait is the time after which a peer that reads nothing gets no more requests, and its
	// own are refused, if too many bytes wait for it. It is less if a write may stall for less.
	crowdedWait = time.Second
)

// output is a frame that waits to be written.
type output struct {
	head       []byte       // header and meta, and the message if it is short
	message    []byte       // the message if it is long
	block      *chain.Block // memory of the message, released after the write; may be nil
	attachment *chain.Chain
	bytes      int64
	sent       func() // called after the write, or after the connection failed; may be nil
	admitted   bool   // the frame is counted already: it has waited for space
}

// newOutput encodes a frame. It takes over the attachment if it succeeds. It returns
// ErrNotSupported for an attachment in memory that the transport cannot send; nil is a socket.
func newOutput(t transport, kind frame.Kind, meta proto.Message, message []byte, attachment *chain.Chain) (output, error) {
	if t != nil {
		if err := t.check(attachment); err != nil {
			return output{}, err
		}
	} else if attachment.OnDevice() {
		return output{}, fmt.Errorf("attach device memory on a connection without RDMA: %w", errdefs.ErrNotSupported)
	}
	size := proto.Size(meta)
	inline := message
	if len(message) > inHead {
		inline = nil
	}
	o := output{attachment: attachment, head: make([]byte, frame.HeaderBytes, frame.HeaderBytes+size+len(inline))}
	h := frame.Header{Kind: kind, Meta: int64(size), Body: int64(size) + int64(len(message)) + attachment.Len()}
	if err := h.Put(o.head); err != nil {
		return o, err
	}
	var err error
	if o.head, err = (proto.MarshalOptions{UseCachedSize: true, Deterministic: true}).MarshalAppend(o.head, meta); err != nil {
		return o, err
	}
	if o.head = append(o.head, inline...); inline == nil {
		o.message = message
	}
	o.bytes = frame.HeaderBytes + h.Body
	return o, nil
}

// writer writes frames to a connection, several by one system call. If no write is in progress,
// write writes the frame itself. Otherwise it queues the frame, and another goroutine writes the
// queue. Callers of write wait for the peer for at most soonWait. Frames with data use writeWait:
// they are queued when at most max bytes wait. A peer that reads nothing for stall ends the
// connection.
type writer struct {
	conn      net.Conn
	stall     time.Duration
	max       int64        // bytes that may wait when a frame is added
	transport transport    // nil: conn carries the frames
	moved     atomic.Int64 // Unix nanoseconds of the start of the last write, or of a part of it

	mu      sync.Mutex
	space   sync.Cond // bytes decreased, or err was set
	pending []output
	free    []output // memory for pending
	bytes   int64    // length of the frames that are not written yet
	urgent  int64    // part of bytes that did not wait for space
	busy    bool     // a goroutine writes
	err     error

	out   *wire.SegmentWriter // used by the goroutine that writes
	list  net.Buffers         // used by the goroutine that writes
	until time.Time           // deadline of the connection; used by the goroutine that writes
}

func newWriter(c net.Conn, stall time.Duration, max int64) *writer {
	w := &writer{conn: c, stall: stall, max: max, out: wire.NewSegmentWriter(c)}
	w.space.L = &w.mu
	return w
}

// admit waits while more bytes wait for the peer than are allowed, and counts n more. It returns
// the cause if ctx ends before, and the error of the connection. With refuse it returns ErrBusy at
// once for a peer that has read nothing for crowdedWait.
func (w *writer) admit(ctx context.Context, n int64, refuse bool) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.bytes > w.max && w.err == nil {
		if err := w.wait(ctx, refuse); err != nil {
			return err
		}
	}
	if w.err == nil {
		w.bytes += n
	}
	return w.err
}

// wait waits until there is space, or the connection ends. The caller holds mu.
func (w *writer) wait(ctx context.Context, refuse bool) error {
	wake := func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.space.Broadcast()
	}
	defer context.AfterFunc(ctx, wake)()
	for w.bytes > w.max && w.err == nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if !refuse {
			w.space.Wait()
			continue
		}
		left := min(crowdedWait, w.stall/4) - time.Since(time.Unix(0, w.moved.Load()))
		if left <= 0 {
			return fmt.Errorf("more than %d bytes wait for the peer: %w", w.max, errdefs.ErrBusy)
		}
		timer := time.AfterFunc(left, wake)
		w.space.Wait()
		timer.Stop()
	}
	return nil
}

// writeWait is write after waiting for space, as admit does.
func (w *writer) writeWait(ctx context.Context, o output, refuse bool) error {
	if err := w.admit(ctx, o.bytes, refuse); err != nil {
		o.drop()
		return err
	}
	o.admitted = true
	return w.write(o)
}

// write sends a frame, now or after the frames before it. It calls o.sent in any case. After an
// error the connection is closed. The error is ErrBusy if more bytes than are allowed did not wait
// for space.
func (w *writer) write(o output) error {
	first, err := w.enqueue(o)
	if !first || err != nil {
		return err
	}
	if o.bytes < flushBytes {
		runtime.Gosched() // other goroutines may add frames
	}
	w.mu.Lock()
	batch := w.take()
	err = w.err
	w.mu.Unlock()
	switch {
	case err != nil:
		err = w.flush(&batch, err)
	case batch.bytes > soonBytes || w.transport != nil || !w.out.Vectored():
		go w.complete(&batch)
		return nil
	default:
		if err = w.flushSoon(&batch); errors.Is(err, os.ErrDeadlineExceeded) {
			batch.begun = true
			go w.complete(&batch)
			return nil
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.done(&batch, err)
	if w.busy = len(w.pending) > 0; w.busy {
		go w.drain()
	}
	return err
}

// batch has frames that are written together.
type batch struct {
	frames []output
	bytes  int64
	urgent int64 // part of bytes that did not wait for space
	begun  bool  // flushSoon has written a part
}

// take takes the queued frames. The caller holds mu.
func (w *writer) take() batch {
	b := batch{frames: w.pending}
	w.pending, w.free = w.free, nil
	for i := range b.frames {
		b.bytes += b.frames[i].bytes
		if !b.frames[i].admitted {
			b.urgent += b.frames[i].bytes
		}
	}
	return b
}

// complete writes a batch, or the rest of it, and the frames that were queued since then. The
// caller has set busy.
func (w *writer) complete(b *batch) {
	err := w.flush(b, nil)
	w.mu.Lock()
	w.done(b, err)
	w.mu.Unlock()
	w.drain()
}

// enqueue adds a frame to the queue. It reports whether the caller must write the queue.
func (w *writer) enqueue(o output) (first bool, err error) {
	w.mu.Lock()
	switch {
	case w.err != nil:
		err := w.err
		w.mu.Unlock()
		o.drop()
		return false, err
	case !o.admitted && w.urgent > w.max:
		w.err = fmt.Errorf("write frame: %w: more than %d bytes wait for the peer", errdefs.ErrBusy, w.max)
		err := w.err
		w.space.Broadcast()
		w.mu.Unlock()
		_ = w.conn.Close() // the peer does not read
		o.drop()
		return false, err
	}
	defer w.mu.Unlock()
	if !o.admitted {
		w.bytes += o.bytes
		w.urgent += o.bytes
	}
	w.pending = append(w.pending, o)
	if first = !w.busy; first {
		w.moved.Store(time.Now().UnixNano()) // the peer had nothing to read before
	}
	w.busy = true
	return first, nil
}

// drain writes the queued frames. The caller has set busy.
func (w *writer) drain() {
	w.mu.Lock()
	for len(w.pending) > 0 {
		b, err := w.take(), w.err
		w.mu.Unlock()
		err = w.flush(&b, err)
		w.mu.Lock()
		w.done(&b, err) // later writes return the error
	}
	w.busy = false
	w.mu.Unlock()
}

// done counts frames as written. The caller holds mu.
func (w *writer) done(b *batch, err error) {
	w.bytes -= b.bytes
	w.urgent -= b.urgent
	w.space.Broadcast()
	w.free = b.frames[:0]
	if w.err == nil && err != nil {
		w.err = err
		_ = w.conn.Close() // so that the reader of the connection returns
	}
}

// failure returns the error of a write that has failed, or of close, or nil.
func (w *writer) failure() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

// close fails later writes with err, and closes the connection.
func (w *writer) close(err error) {
	w.mu.Lock()
	if w.err == nil {
		w.err = err
	}
	w.space.Broadcast()
	w.mu.Unlock()
	_ = w.conn.Close() // its error does not matter: the connection is not used any more
}

// flush writes and releases frames, unless there was an error. It releases them after errors too.
func (w *writer) flush(b *batch, err error) error {
	if err == nil && w.transport != nil {
		w.moved.Store(time.Now().UnixNano())
		err = w.transport.send(b.frames)
		clear(b.frames)
		return err
	}
	if err == nil {
		err = w.extend(w.stall-w.stall/16, w.stall)
	}
	if err == nil && !b.begun {
		err = w.addAll(b)
	}
	if err == nil {
		err = w.out.Flush()
	}
	b.drop()
	return err
}

// flushSoon is like flush for at most soonBytes to a socket. After soonWait it returns
// os.ErrDeadlineExceeded and keeps the frames, for complete.
func (w *writer) flushSoon(b *batch) error {
	err := w.extend(soonWait/2, soonWait)
	if err == nil {
		err = w.addAll(b) // writes nothing
	}
	if err == nil {
		err = w.out.FlushSoon()
	}
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		b.drop()
	}
	return err
}

// extend sets the deadline of the next write to most from now, unless it is between least and most.
func (w *writer) extend(least, most time.Duration) error {
	now := time.Now()
	w.moved.Store(now.UnixNano())
	if left := w.until.Sub(now); left >= least && left <= most {
		return nil
	}
	w.until = now.Add(most)
	return w.conn.SetWriteDeadline(w.until)
}

// addAll appends frames to the next write.
func (w *writer) addAll(b *batch) error {
	for i := range b.frames {
		if err := w.add(&b.frames[i]); err != nil {
			return err
		}
	}
	return nil
}

// add appends a frame to the next write.
func (w *writer) add(o *output) error {
	if err := w.put(o.head); err != nil {
		return err
	}
	if err := w.put(o.message); err != nil {
		return err
	}
	var err error
	if w.list, err = o.attachment.Buffers(w.list[:0]); err != nil {
		return err
	}
	for _, p := range w.list {
		if err = w.put(p); err != nil {
			return err
		}
	}
	clear(w.list)
	return nil
}

// put appends bytes to the next write. It begins a write, with its own deadline, whenever there are
// flushBytes.
func (w *writer) put(p []byte) error {
	for len(p) > 0 {
		n := min(len(p), flushBytes)
		if err := w.out.Append(p[:n]); err != nil {
			return err
		}
		p = p[n:]
		if w.out.Buffered() < flushBytes {
			continue
		}
		if err := errors.Join(w.out.Flush(), w.extend(w.stall-w.stall/16, w.stall)); err != nil {
			return err
		}
	}
	return nil
}

// drop releases the frames.
func (b *batch) drop() {
	for i := range b.frames {
		b.frames[i].drop()
	}
	clear(b.frames)
}

// drop releases the memory and calls sent.
func (o *output) drop() {
	if o.block != nil {
		o.block.Release()
	}
	o.attachment.Release()
	if o.sent != nil {
		o.sent()
	}
}
