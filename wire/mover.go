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

// pipelineDepth is the number of chunks that one transfer uses: one at the connection, the others
// in the device's queue.
const pipelineDepth = 4

// MoverOptions configures a Mover. The zero value moves only memory that the CPU can access.
type MoverOptions struct {
	// Device allocates the pinned chunks. Nil: moving device memory returns ErrNotSupported.
	Device device.Device
	// Copy copies between chunks and Device's memory. The caller owns it and closes it after the
	// Mover.
	Copy stream.Stream
	// ChunkBytes is the length of a chunk, and Chunks the number of chunks for each direction. The
	// Mover allocates them on first use. Zero selects the defaults.
	ChunkBytes int64
	Chunks     int
}

// Mover moves bytes between memory and connections.
//
// Two Movers that send to each other do not deadlock, because each direction has separate chunks. A
// BriefReader or BriefWriter prevents a slow peer from occupying chunks: the Mover releases them
// while no byte arrives or leaves. With a plain io.Writer, a sender keeps one chunk until all bytes
// are sent.
type Mover struct {
	o       MoverOptions
	in, out chan mem.Extent // free chunks, to receive into and to send from

	mu     sync.Mutex
	region *mem.Region // memory of the chunks; nil before the first use
	closed bool
}

// NewMover returns a Mover. It returns ErrInvalid for options out of range.
func NewMover(o MoverOptions) (*Mover, error) {
	o.ChunkBytes, o.Chunks = cmp.Or(o.ChunkBytes, DefaultChunkBytes), cmp.Or(o.Chunks, DefaultChunks)
	if o.ChunkBytes < 0 || o.Chunks < 0 || (o.Device == nil) != (o.Copy == nil) {
		return nil, fmt.Errorf("make mover with %d chunks of %d bytes: a device and its stream must be given together: %w", o.Chunks, o.ChunkBytes, errdefs.ErrInvalid)
	}
	return &Mover{o: o, in: make(chan mem.Extent, o.Chunks), out: make(chan mem.Extent, o.Chunks)}, nil
}

// Moves returns an error if the Mover cannot move bytes of r.
func (m *Mover) Moves(r *mem.Region) error {
	switch {
	case r == nil || r.Kind() == mem.KindFile:
		return fmt.Errorf("%s is not memory: %w", r, errdefs.ErrInvalid)
	case r.Bytes() == nil && m.o.Copy == nil:
		return fmt.Errorf("%s needs a device for staging: %w", r, errdefs.ErrNotSupported)
	}
	return nil
}

// BriefWriter is a connection with a time limit for each write.
type BriefWriter interface {
	io.Writer
	// Flush writes the bytes that Write and WriteBy have buffered.
	Flush() error
	// Ready reports whether WriteBy accepts n bytes, in several calls, without a Flush before.
	Ready(n int64) bool
	// WriteBy writes or buffers as much of p as it can before the time by. Writing less than p is
	// not an error.
	WriteBy(p []byte, by time.Time) (int, error)
}

// Send writes the bytes of the extents to w in order. w should be a BriefWriter if memory is
// staged. After Send has returned it does not access the memory. ctx bounds its waits for the
// device, and deadlines of w those for the peer. After an error, w may have received any part of
// the bytes. ErrLost means that another process has reclaimed its memory, and that the sent bytes
// may be wrong.
func (m *Mover) Send(ctx context.Context, w io.Writer, list []mem.Extent) error {
	holds, err := keepMapped(list)
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
	if err := holds.Check(); err != nil { // lost memory may hold other data
		return fmt.Errorf("send memory: %w", err)
	}
	return nil
}

// BriefReader is a connection with a time limit for each read.
type BriefReader interface {
	io.Reader
	// ReadBy is Read that waits at most until the time by. It returns no error if no byte has
	// arrived by then.
	ReadBy(p []byte, by time.Time) (int, error)
}

// Receive fills the extents in order with bytes from r. r should be a BriefReader if memory is
// staged. After Receive has returned it does not access the memory. If it returns nil, all bytes
// are visible there. ctx has the same effect as in Send.
func (m *Mover) Receive(ctx context.Context, r io.Reader, list []mem.Extent) error {
	holds, err := keepMapped(list)
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

// keepMapped keeps the memory of other processes in the list mapped until the result is released.
func keepMapped(list []mem.Extent) (holds mem.Holds, err error) {
	for i := range list {
		if err := holds.Add(list[i].Region); err != nil {
			holds.Release()
			return nil, err
		}
	}
	return holds, nil
}

// countStaged returns the number of leading extents that the CPU cannot access.
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

// stagedChunk is a chunk and the extents whose bytes it holds.
type stagedChunk struct {
	chunk  mem.Extent
	from   cursor
	bytes  int64
	batch  mem.Batch
	ticket *stream.Ticket
}

// cursor is the position of a transfer in its list of extents.
type cursor struct {
	list []mem.Extent // remaining part of the caller's list, which is not modified
	done int64        // completed bytes of the first extent
}

// take consumes and returns up to most bytes of the first extent. The result may be empty.
func (c *cursor) take(most int64) mem.Extent {
	e := c.list[0].Sub(c.done, min(c.list[0].Len-c.done, most))
	if c.done += e.Len; c.done == c.list[0].Len {
		c.list, c.done = c.list[1:], 0
	}
	return e
}

// pipeline is the state of one transfer through the chunks.
type pipeline struct {
	cursor

	m        *Mover
	free     chan mem.Extent
	ctx      context.Context
	inFlight []*stagedChunk // in the device's queue, in order
}

func (m *Mover) sendStaged(ctx context.Context, w io.Writer, list []mem.Extent) (err error) {
	p := &pipeline{m: m, free: m.out, cursor: cursor{list: list}, ctx: ctx}
	defer p.drain()
	socket, brief := w.(BriefWriter)
	if brief && !socket.Ready(length(list)) {
		if err := socket.Flush(); err != nil { // without a chunk
			return err
		}
	}
	var first []byte
	// A slow connection uses one chunk at a time, with as many bytes as it accepted last.
	window, depth := m.o.ChunkBytes, pipelineDepth
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

// writeBriefly writes b. With a BriefWriter it writes as much of b as is accepted within briefWait.
func writeBriefly(w io.Writer, b []byte) (int, error) {
	if socket, ok := w.(BriefWriter); ok {
		return socket.WriteBy(b, time.Now().Add(briefWait))
	}
	return w.Write(b)
}

const (
	// number of bytes that a transfer receives without holding a chunk, and then copies
	firstBytes = 4 << 10
	briefWait  = 5 * time.Millisecond // longest wait while holding a chunk
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

// await reads the first bytes of a chunk. While it waits for the peer, the transfer holds no chunk
// for longer than briefWait.
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

// readBriefly fills b. With a BriefReader it fills as much of b as arrives within briefWait.
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

// next returns a chunk to receive into. If no chunk is free, it waits for the oldest one in the
// queue.
func (p *pipeline) next() (mem.Extent, error) {
	if len(p.inFlight) < pipelineDepth {
		chunk, err := p.chunk(len(p.inFlight) == 0)
		if err != nil || chunk.Region != nil {
			return chunk, err
		}
	}
	return p.oldest()
}

// completeAll waits for all chunks in the queue and frees them.
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

// oldest waits for the first chunk in the queue and removes it from there.
func (p *pipeline) oldest() (mem.Extent, error) {
	l := p.inFlight[0]
	if err := l.ticket.Wait(p.ctx); err != nil {
		return mem.Extent{}, err
	}
	p.inFlight = p.inFlight[1:]
	return l.chunk, nil
}

// fill assigns the next extents, at most most bytes, to the chunk. If in is set, the chunk is
// copied to the extents, otherwise the extents to the chunk.
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

// chunk returns a free chunk. If there is none, it waits for one if wait is set, and returns an
// empty extent otherwise.
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

// drain cancels the copies in the queue and waits until the device accesses neither chunks nor
// memory. The wait has no limit, because both are reused afterwards.
func (p *pipeline) drain() {
	for _, l := range p.inFlight {
		l.ticket.Cancel()
	}
	for _, l := range p.inFlight {
		<-l.ticket.Done()
		p.free <- l.chunk
	}
}

// ready allocates the chunks on first use.
func (m *Mover) ready() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.closed:
		return fmt.Errorf("mover: %w", errdefs.ErrClosed)
	case m.region != nil:
		return nil
	case m.o.Copy == nil:
		return fmt.Errorf("staging needs a device: %w", errdefs.ErrNotSupported)
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

// Close frees the chunks. It returns ErrBusy while bytes are being moved. A second Close returns
// nil.
func (m *Mover) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.region != nil {
		if len(m.in) != m.o.Chunks || len(m.out) != m.o.Chunks {
			return fmt.Errorf("close mover: transfers are in progress: %w", errdefs.ErrBusy)
		}
		if err := m.o.Device.Free(m.region); err != nil {
			return errors.Join(errors.New("close mover"), err)
		}
		m.region = nil
	}
	m.closed = true
	return nil
}
