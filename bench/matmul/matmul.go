package matmul

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/sys/cublaslt"
	"github.com/kvlane/kvlane/mem"
)

const (
	// MaxRows is the maximum number of rows and columns of the matrices.
	MaxRows = 8192
	// MinRows is the minimum number of rows. Smaller products would fill the queue of the driver
	// within a window, and Enqueue would block.
	MinRows = 4096
	// RowStep must divide the number of rows. The fast algorithms of the library require it.
	RowStep = 64
	// closeTimeout is the maximum wait for enqueued products.
	closeTimeout = 30 * time.Second
)

// gpu is a device whose native calls need a context.
type gpu interface {
	device.Device
	// Do calls f with the device's context current on the calling thread.
	Do(f func() error) error
}

// stream is a queue with a native handle for other libraries.
type stream interface {
	device.Queue
	Handle() uintptr
}

// Product is a matrix product on one device.
type Product struct {
	dev     gpu
	queue   stream
	lib     *cublaslt.Library
	handle  *cublaslt.Handle
	product *cublaslt.Product
	a, b, d *mem.Region
	scratch *mem.Region
	host    *mem.Region // buffer for the initial values
	// enqueue is stored to avoid an allocation per call.
	enqueue func() error
	times   int // number of products of the next call of enqueue
	n       int // number of rows and columns
	closers []func() error
}

// Open loads cublasLt and fills matrices with the given number of rows. path is the library; if it
// is empty, the loader searches for the library. The error wraps ErrNotSupported if cublasLt is not
// installed or the device is not a CUDA GPU.
func Open(ctx context.Context, dev device.Device, path string, rows int) (_ *Product, err error) {
	if rows < MinRows || rows > MaxRows || rows%RowStep != 0 {
		return nil, fmt.Errorf("open matrix product of %d rows: must be a multiple of %d, from %d to %d: %w", rows, RowStep, MinRows, MaxRows, errdefs.ErrInvalid)
	}
	g, ok := dev.(gpu)
	if !ok {
		return nil, fmt.Errorf("open matrix product: device %s does not support it: %w", dev.Info().Driver, errdefs.ErrNotSupported)
	}
	p := &Product{dev: g, n: rows}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("open matrix product: %w", err), p.Close())
		}
	}()
	if p.lib, err = cublaslt.Load(path); err != nil {
		return nil, err
	}
	p.onClose(p.lib.Close)
	if err := g.Do(p.prepare); err != nil {
		return nil, err
	}
	if err := p.allocate(); err != nil {
		return nil, err
	}
	p.enqueue = p.enqueueAll
	return p, p.fill(ctx)
}

func (p *Product) onClose(f func() error) { p.closers = append(p.closers, f) }

// prepare opens the library handle and allocates memory. It must be called in the device's context.
func (p *Product) prepare() (err error) {
	if p.handle, err = p.lib.Open(); err != nil {
		return err
	}
	p.onClose(func() error { return p.dev.Do(p.handle.Close) })
	if p.product, err = p.handle.NewProduct(p.n); err != nil {
		return err
	}
	p.onClose(func() error { return p.product.Close() })
	return nil
}

func (p *Product) allocate() error {
	for _, m := range []struct {
		to    **mem.Region
		bytes int64
	}{{&p.a, p.product.MatrixBytes()}, {&p.b, p.product.MatrixBytes()}, {&p.d, p.product.MatrixBytes()}, {&p.scratch, cublaslt.WorkspaceBytes}} {
		r, err := p.dev.Alloc(m.bytes, device.AllocOptions{})
		if err != nil {
			return fmt.Errorf("allocate %d bytes for matrices: %w", m.bytes, err)
		}
		*m.to = r
		p.onClose(func() error { return p.dev.Free(r) })
	}
	host, err := p.dev.AllocHost(p.product.MatrixBytes())
	if err != nil {
		return fmt.Errorf("allocate %d bytes of pinned memory: %w", p.product.MatrixBytes(), err)
	}
	p.host = host
	p.onClose(func() error { return p.dev.Free(host) })
	q, err := p.dev.OpenQueue(device.QueueOptions{})
	if err != nil {
		return fmt.Errorf("open queue: %w", err)
	}
	p.onClose(func() error {
		ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
		defer cancel()
		return q.Close(ctx)
	})
	s, ok := q.(stream)
	if !ok {
		return fmt.Errorf("a queue of device %s is no stream: %w", p.dev.Info().Driver, errdefs.ErrNotSupported)
	}
	p.queue = s
	return nil
}

// fill writes random values to the matrices.
func (p *Product) fill(ctx context.Context) error {
	for seed, m := range []*mem.Region{p.a, p.b} {
		randomize(p.host.Bytes(), uint64(seed)<<40)
		if err := p.queue.Copy(mem.All(m), mem.All(p.host)); err != nil {
			return fmt.Errorf("fill matrix: %w", err)
		}
		e, err := p.queue.Record()
		if err != nil {
			return fmt.Errorf("fill matrix: %w", err)
		}
		err = e.Wait(ctx)
		e.Close()
		if err != nil {
			return fmt.Errorf("fill matrix: %w", err)
		}
	}
	return nil
}

// randomize fills b with the bfloat16 values -1, 0 and 1. With random mantissas the GPU would reach
// its power limit and reduce its clock rate by more than copies slow it down (H100: 620 to 800
// TFLOP/s instead of 800 to 900).
func randomize(b []byte, seed uint64) {
	const one, sign = 0x3f80, 0x8000
	for i := 0; i+8 <= len(b); i += 8 {
		bits, word := device.Mix64(seed+uint64(i/8)), uint64(0)
		for range 4 {
			word <<= 16
			if r := uint16(bits) % 3; r > 0 {
				word |= one | uint64(r-1)*sign
			}
			bits >>= 16
		}
		binary.LittleEndian.PutUint64(b[i:], word)
	}
}

// Describe returns the size of the product and the library.
func (p *Product) Describe() string {
	return fmt.Sprintf("products of %d x %d bf16 matrices by cublasLt %s", p.n, p.n, p.lib.Version())
}

// Operations returns the number of floating-point operations of one product.
func (p *Product) Operations() float64 { return p.product.Operations() }

// Enqueue enqueues n products.
func (p *Product) Enqueue(n int) error {
	p.times = n
	return p.dev.Do(p.enqueue)
}

func (p *Product) enqueueAll() error {
	for range p.times {
		err := p.product.Enqueue(uint64(p.a.Dev()), uint64(p.b.Dev()), uint64(p.d.Dev()), uint64(p.scratch.Dev()), p.queue.Handle())
		if err != nil {
			return fmt.Errorf("enqueue matrix product: %w", err)
		}
	}
	return nil
}

// Record returns an event that completes after all products enqueued so far.
func (p *Product) Record() (device.Event, error) { return p.queue.Record() }

// Close waits for enqueued products and frees everything. It stops at the first failure and may be
// retried.
func (p *Product) Close() error {
	for len(p.closers) > 0 {
		last := len(p.closers) - 1
		if err := p.closers[last](); err != nil {
			return fmt.Errorf("close matrix product: %w", err)
		}
		p.closers = p.closers[:last]
	}
	return nil
}
