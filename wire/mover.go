package wire

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream"
)

// Defaults of MoverOptions.
const (
	DefaultChunkBytes = 2 << 20
	DefaultChunks     = 8
)

// ahead is how many chunks one transfer has at most: one on the socket, the others on the device's queue.
const pipelineDepth = 4

// MoverOptions say how a Mover is made. The zero value moves memory that the CPU reaches.
type MoverOptions struct {
	// Device allocates the pinned chunks. Nil: device memory is ErrNotSupported.
	Device device.Device
	// Copy copies between chunks and Device's memory. It stays the caller's, and outlives the Mover.
	Copy stream.Stream
	// ChunkBytes is how long a chunk is, and Chunks how many there are each way, allocated when one is first needed. Zero: the defaults.
	ChunkBytes int64
	Chunks     int
}

// Mover moves bytes between extents of memory and sockets.
//
// Two Movers that send to one another never wait for each other's chunks: what is received has chunks of its own, and for a BriefWriter a
// sender has none while nothing goes, as of a BriefReader a receiver has none while nothing comes: who is slow at the other end keeps them from
// nobody. Who has begun to send to a plain Writer keeps one until all is sent.
type Mover struct {
	o       MoverOptions
	in, out chan mem.Extent // chunks that are free, of what is received and sent

	mu     sync.Mutex
	region *mem.Region // of the chunks; nil: not allocated
	closed bool
}

// NewMover returns a Mover. ErrInvalid.
func NewMover(o MoverOptions) (*Mover, error) {
	o.ChunkBytes, o.Chunks = cmp.Or(o.ChunkBytes, DefaultChunkBytes), cmp.Or(o.Chunks, DefaultChunks)
	if o.ChunkBytes < 0 || o.Chunks < 0 || (o.Device == nil) != (o.Copy == nil) {
		return nil, fmt.Errorf("make mover with %d chunks of %d bytes: a device and its stream go together: %w", o.Chunks, o.ChunkBytes, errdefs.ErrInvalid)
	}
	return &Mover{o: o, in: make(chan mem.Extent, o.Chunks), out: make(chan mem.Extent, o.Chunks)}, nil
}

// Moves returns why the Mover cannot move r's bytes, or nil.
func (m *Mover) Moves(r *mem.Region) error {
	switch {
	case r == nil || r.Kind() == mem.KindFile:
		return fmt.Errorf("%s is no memory: %w", r, errdefs.ErrInvalid)
	case r.Bytes() == nil && m.o.Copy == nil:
		return fmt.Errorf("%s needs a device to be staged by: %w", r, errdefs.ErrNotSupported)
	}
	return nil
}

// BriefWriter is a socket whose writes can be brief.
type BriefWriter interface {
	io.Writer
	// Flush writes what Write and WriteBy have gathered.
	Flush() error
	// Ready reports whether WriteBy takes n bytes, in any pieces, without a Flush before.
	Ready(n int64) bool
	// WriteBy writes what it can of p until a time at most, or gathers it. That it was not all is no error.
	WriteBy(p []byte, by time.Time) (int, error)
}

// Send writes the bytes of the extents to w, which should be a BriefWriter where memory is staged, one after another. When it returns nothing touches the memory any more; ctx ends waits for
// the device, and who ends those for w is its deadline. Whatever the error, w may have got less than all. ErrLost if another process's memory
// was taken back before the end: w may have got all, of which nobody knows what it is.
func (m *Mover) Send(ctx context.Context, w io.Writer, list []mem.Extent) error {
	holds, err := hold(list)
	if err != nil {
		return fmt.Errorf("send memory: %w", err)
	}
	defer holds.Release()
	for len(list) > 0 {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("send memory: %w", context.Cause(ctx))
		}
		if b := list[0].Bytes(); b != nil {
			if _, err := w.Write(b); err != nil {
				return fmt.Errorf("send memory: %w", err)
			}
			list = list[1:]
			continue
		}
		n := countStaged(list)
		if err := m.sendStaged(ctx, w, list[:n]); err != nil {
			return fmt.Errorf("send device memory: %w", err)
		}
		list = list[n:]
	}
	if err := holds.Check(); err != nil { // what was lost meanwhile has been somebody else's
		return fmt.Errorf("send memory: %w", err)
	}
	return nil
}

// BriefReader is a socket whose reads can be brief.
type BriefReader interface {
	io.Reader
	// ReadBy is Read that waits until a time at most. That nothing came until then is no error.
	ReadBy(p []byte, by time.Time) (int, error)
}

// Receive fills the extents with what r has, which should be a BriefReader where memory is staged, one after another. When it returns nothing touches the memory any more, and if it returns
// nil every byte is where it belongs. ctx is as for Send.
func (m *Mover) Receive(ctx context.Context, r io.Reader, list []mem.Extent) error {
	holds, err := hold(list)
	if err != nil {
		return fmt.Errorf("receive into memory: %w", err)
	}
	defer holds.Release()
	for len(list) > 0 {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("receive into memory: %w", context.Cause(ctx))
		}
		if b := list[0].Bytes(); b != nil {
			if _, err := io.ReadFull(r, b); err != nil {
				return fmt.Errorf("receive into memory: %w", err)
			}
			list = list[1:]
			continue
		}
		n := countStaged(list)
		if err := m.receiveStaged(ctx, r, list[:n]); err != nil {
			return fmt.Errorf("receive into device memory: %w", err)
		}
		list = list[n:]
	}
	if err := holds.Check(); err != nil {
		return fmt.Errorf("receive into memory: %w", err)
	}
	return nil
}

// hold holds the memory of other processes in the list.
func hold(list []mem.Extent) (holds mem.Holds, err error) {
	for i := range list {
		if err := holds.Add(list[i].Region); err != nil {
			holds.Release()
			return nil, err
		}
	}
	return holds, nil
}

// staged returns how many extents from the first on the CPU does not reach.
func countStaged(list []mem.Extent) int {
	for i, e := range list {
		if e.Bytes() != nil && e.Len > 0 {
			return i
		}
	}
	return len(list)
}

func length(list []mem.Extent) (n int64) {
	for i := range list {
		n += list[i].Len
	}
	return n
}

// load is a chunk with the extents that it holds the bytes of.
type stagedChunk struct {
	chunk  mem.Extent
	from   cursor
	bytes  int64
	batch  mem.Batch
	ticket *stream.Ticket
}

// cursor is where in its list a transfer is.
type cursor struct {
	list []mem.Extent // what is left of the caller's, which stays as it is
	done int64        // bytes of its first extent
}

// take returns the next extent, of most bytes at most, of which there may be none.
func (c *cursor) take(most int64) mem.Extent {
	e := c.list[0].Sub(c.done, min(c.list[0].Len-c.done, most))
	if c.done += e.Len; c.done == c.list[0].Len {
		c.list, c.done = c.list[1:], 0
	}
	return e
}

// pipeline is one transfer's way through the chunks.
type pipeline struct {
	cursor

	m        *Mover
	free     chan mem.Extent
	ctx      context.Context
	inFlight []*stagedChunk // on the device's queue, in order
}

func (m *Mover) sendStaged(ctx context.Context, w io.Writer, list []mem.Extent) (err error) {
	p := &pipeline{m: m, free: m.out, cursor: cursor{list: list}, ctx: ctx}
	defer p.drain()
	socket, brief := w.(BriefWriter)
	if brief && !socket.Ready(length(list)) {
		if err := socket.Flush(); err != nil { // which no chunk is held for
			return err
		}
	}
	var first []byte
	window, depth := m.o.ChunkBytes, pipelineDepth // of a slow socket as much as it took last time, and one at a time
	for {
		for len(p.list) > 0 && len(p.inFlight) < depth {
			chunk, err := p.chunk(len(p.inFlight) == 0)
			if err != nil {
				return err
			}
			if chunk.Region == nil {
				break
			}
			if err := p.submit(p.fill(chunk, window, false)); err != nil {
				return err
			}
		}
		if len(p.inFlight) == 0 {
			return nil
		}
		l := p.inFlight[0]
		if err := l.ticket.Wait(ctx); err != nil {
			return err
		}
		n, err := writeBriefly(w, l.chunk.Bytes()[:l.bytes])
		if err != nil {
			return err
		}
		if int64(n) == l.bytes {
			if window = min(2*window, m.o.ChunkBytes); window == m.o.ChunkBytes {
				depth = pipelineDepth
			}
			p.inFlight = p.inFlight[1:]
			if len(p.list) == 0 {
				p.free <- l.chunk
			} else if err := p.submit(p.fill(l.chunk, window, false)); err != nil {
				return err
			}
			continue
		}
		first = append(first[:0], l.chunk.Bytes()[n:min(l.bytes, int64(n+firstBytes))]...)
		p.cursor = l.from
		for left := int64(n + len(first)); left > 0; {
			left -= p.take(left).Len
		}
		if err = p.completeAll(); err != nil {
			return err
		}
		if _, err := w.Write(first); err != nil {
			return err
		}
		if err := socket.Flush(); err != nil {
			return err
		}
		window, depth = min(max(int64(n), firstBytes), m.o.ChunkBytes), 1
	}
}

// writeBriefly writes what goes soon of b.
func writeBriefly(w io.Writer, b []byte) (int, error) {
	if socket, ok := w.(BriefWriter); ok {
		return socket.WriteBy(b, time.Now().Add(briefWait))
	}
	return w.Write(b)
}

const (
	firstBytes = 4 << 10              // what is waited for without a chunk, and copied to or from it
	briefWait  = 5 * time.Millisecond // how long more is waited for with one
)

func (m *Mover) receiveStaged(ctx context.Context, r io.Reader, list []mem.Extent) (err error) {
	p := &pipeline{m: m, free: m.in, cursor: cursor{list: list}, ctx: ctx}
	defer p.drain()
	left := length(list)
	first := make([]byte, min(left, firstBytes, m.o.ChunkBytes))
	for left > 0 {
		n, err := p.await(r, first[:min(left, int64(len(first)))])
		if err != nil {
			return err
		}
		chunk, err := p.next()
		if err != nil {
			return err
		}
		copy(chunk.Bytes(), first[:n])
		more, err := readBriefly(r, chunk.Bytes()[n:min(left, chunk.Len)])
		if err != nil {
			p.free <- chunk
			return err
		}
		l := p.fill(chunk, int64(n+more), true)
		if err := p.submit(l); err != nil {
			return err
		}
		left -= l.bytes
	}
	return p.completeAll()
}

// await reads the first bytes of a chunk. No chunk is held for longer than a moment meanwhile.
func (p *pipeline) await(r io.Reader, b []byte) (n int, err error) {
	if socket, ok := r.(BriefReader); ok && len(p.inFlight) > 0 {
		if n, err = socket.ReadBy(b, time.Now().Add(briefWait)); n > 0 || err != nil {
			return n, err
		}
		if err := p.completeAll(); err != nil {
			return 0, err
		}
	}
	return io.ReadAtLeast(r, b, 1)
}

// readBriefly fills b with what comes soon.
func readBriefly(r io.Reader, b []byte) (n int, err error) {
	socket, ok := r.(BriefReader)
	if !ok {
		return io.ReadFull(r, b)
	}
	for by := time.Now().Add(briefWait); n < len(b); {
		more, err := socket.ReadBy(b[n:], by)
		n += more
		if err != nil || more == 0 {
			return n, err
		}
	}
	return n, nil
}

// next returns a chunk to receive into.
func (p *pipeline) next() (mem.Extent, error) {
	if len(p.inFlight) < pipelineDepth {
		chunk, err := p.chunk(len(p.inFlight) == 0)
		if err != nil || chunk.Region != nil {
			return chunk, err
		}
	}
	return p.oldest()
}

// land waits for all on the queue, and gives their chunks back.
func (p *pipeline) completeAll() error {
	for len(p.inFlight) > 0 {
		chunk, err := p.oldest()
		if err != nil {
			return err
		}
		p.free <- chunk
	}
	return nil
}

// oldest waits for the first of those on the queue and returns its chunk.
func (p *pipeline) oldest() (mem.Extent, error) {
	l := p.inFlight[0]
	if err := l.ticket.Wait(p.ctx); err != nil {
		return mem.Extent{}, err
	}
	p.inFlight = p.inFlight[1:]
	return l.chunk, nil
}

// fill takes the next extents, most bytes of them, for the chunk; in says that the chunk is copied to them.
func (p *pipeline) fill(chunk mem.Extent, most int64, in bool) *stagedChunk {
	l := &stagedChunk{chunk: chunk, from: p.cursor}
	for len(p.list) > 0 && l.bytes < most {
		src := p.take(most - l.bytes)
		if src.Len == 0 {
			continue
		}
		dst := chunk.Sub(l.bytes, src.Len)
		l.bytes += src.Len
		if in {
			dst, src = src, dst
		}
		l.batch.Dst, l.batch.Src = append(l.batch.Dst, dst), append(l.batch.Src, src)
	}
	return l
}

func (p *pipeline) submit(l *stagedChunk) (err error) {
	if l.ticket, err = p.m.o.Copy.Submit(p.ctx, &l.batch); err != nil {
		p.free <- l.chunk
		return err
	}
	p.inFlight = append(p.inFlight, l)
	return nil
}

// chunk returns a chunk, or none if it would have to wait and must not.
func (p *pipeline) chunk(wait bool) (mem.Extent, error) {
	if err := p.m.ready(); err != nil {
		return mem.Extent{}, err
	}
	select {
	case c := <-p.free:
		return c, nil
	default:
	}
	if !wait {
		return mem.Extent{}, nil
	}
	select {
	case c := <-p.free:
		return c, nil
	case <-p.ctx.Done():
		return mem.Extent{}, fmt.Errorf("wait for staging memory: %w", context.Cause(p.ctx))
	}
}

// drain waits until the device touches neither chunks nor memory, however long that takes: neither may be used before.
func (p *pipeline) drain() {
	for _, l := range p.inFlight {
		l.ticket.Cancel()
	}
	for _, l := range p.inFlight {
		<-l.ticket.Done()
		p.free <- l.chunk
	}
}

// ready allocates the chunks, the first time.
func (m *Mover) ready() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.closed:
		return fmt.Errorf("mover: %w", errdefs.ErrClosed)
	case m.region != nil:
		return nil
	case m.o.Copy == nil:
		return fmt.Errorf("there is no device to stage by: %w", errdefs.ErrNotSupported)
	}
	r, err := m.o.Device.AllocHost(2 * m.o.ChunkBytes * int64(m.o.Chunks))
	if err != nil {
		return fmt.Errorf("allocate staging memory: %w", err)
	}
	m.region = r
	for i := range m.o.Chunks {
		m.in <- mem.Extent{Region: r, Off: int64(2*i) * m.o.ChunkBytes, Len: m.o.ChunkBytes}
		m.out <- mem.Extent{Region: r, Off: int64(2*i+1) * m.o.ChunkBytes, Len: m.o.ChunkBytes}
	}
	return nil
}

// Close frees the chunks. ErrBusy while bytes are moved. A second Close returns nil.
func (m *Mover) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.region != nil {
		if len(m.in) != m.o.Chunks || len(m.out) != m.o.Chunks {
			return fmt.Errorf("close mover: bytes are being moved: %w", errdefs.ErrBusy)
		}
		if err := m.o.Device.Free(m.region); err != nil {
			return errors.Join(errors.New("close mover"), err)
		}
		m.region = nil
	}
	m.closed = true
	return nil
}
