package rpc

import (
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"sync"
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
	// soonBytes is the length up to which write writes frames itself, and soonWait the time after which
	// another goroutine goes on.
	soonBytes = 64 << 10
	soonWait  = 20 * time.Millisecond
)

// output is a frame that waits to be written.
type output struct {
	head       []byte       // header and meta, and the message if it is short
	message    []byte       // the message if it is long
	block      *chain.Block // memory of the message, released after the write; may be nil
	attachment *chain.Chain
	bytes      int64
	sent       func() // called after the write, or after the connection failed; may be nil
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
// queue. Callers wait for the peer for at most soonWait.
type writer struct {
	conn      net.Conn
	stall     time.Duration
	max       int64     // bytes that may wait; at twice as many the connection is closed
	transport transport // nil: conn carries the frames

	mu      sync.Mutex
	pending []output
	free    []output // memory for pending
	bytes   int64    // length of the frames that are not written yet
	busy    bool     // a goroutine writes
	err     error

	out   *wire.SegmentWriter // used by the goroutine that writes
	list  net.Buffers         // used by the goroutine that writes
	until time.Time           // deadline of the connection; used by the goroutine that writes
}

func newWriter(c net.Conn, stall time.Duration, max int64) *writer {
	return &writer{conn: c, stall: stall, max: max, out: wire.NewSegmentWriter(c)}
}

// overcrowded reports whether more bytes wait than are allowed.
func (w *writer) overcrowded() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.bytes > w.max
}

// write sends a frame, now or after the frames before it. It calls o.sent in any case. After an
// error the connection is closed. The error is ErrBusy if twice the allowed bytes wait.
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
	begun  bool // flushSoon has written a part
}

// take takes the queued frames. The caller holds mu.
func (w *writer) take() batch {
	b := batch{frames: w.pending}
	w.pending, w.free = w.free, nil
	for i := range b.frames {
		b.bytes += b.frames[i].bytes
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
	case w.bytes > 2*w.max:
		w.err = fmt.Errorf("write frame: %w: more than %d bytes wait for the peer", errdefs.ErrBusy, 2*w.max)
		err := w.err
		w.mu.Unlock()
		_ = w.conn.Close() // the peer does not read
		o.drop()
		return false, err
	}
	defer w.mu.Unlock()
	w.bytes += o.bytes
	w.pending = append(w.pending, o)
	first = !w.busy
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
	w.free = b.frames[:0]
	if w.err == nil && err != nil {
		w.err = err
		_ = w.conn.Close() // so that the reader of the connection returns
	}
}

// failed reports whether a write has failed.
func (w *writer) failed() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err != nil
}

// close fails later writes with err, and closes the connection.
func (w *writer) close(err error) {
	w.mu.Lock()
	if w.err == nil {
		w.err = err
	}
	w.mu.Unlock()
	_ = w.conn.Close() // its error does not matter: the connection is not used any more
}

// flush writes and releases frames, unless there was an error. It releases them after errors too.
func (w *writer) flush(b *batch, err error) error {
	if err == nil && w.transport != nil {
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
