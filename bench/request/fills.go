package request

import (
	"context"
	"errors"
	"fmt"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
)

// maxFill is how much memory one fill sets at most.
const maxFill = 16 << 20

// fills are a Model that sets memory, one byte an operation: what a simulated device can do for a while.
type fills struct {
	dev    device.Device
	queue  device.Queue
	handle uintptr
	memory *mem.Region
	bytes  int64 // of a fill
}

// OpenFills opens a Model whose products are fills of device memory. ErrNotSupported where queues have no native handle.
func OpenFills(_ context.Context, dev device.Device) (_ Model, err error) {
	f := &fills{dev: dev, bytes: 64 << 10}
	if f.queue, err = dev.OpenQueue(device.QueueOptions{}); err != nil {
		return nil, fmt.Errorf("open a queue for fills: %w", err)
	}
	named, ok := f.queue.(interface{ Handle() uintptr })
	if !ok {
		return nil, errors.Join(fmt.Errorf("a queue of device %s is no stream: %w", dev.Info().Driver, errdefs.ErrNotSupported), f.Close())
	}
	f.handle = named.Handle()
	if f.memory, err = dev.Alloc(maxFill, device.AllocOptions{}); err != nil {
		return nil, errors.Join(fmt.Errorf("allocate %d bytes for fills: %w", maxFill, err), f.Close())
	}
	return f, nil
}

// Describe implements bench.Product.
func (f *fills) Describe() string { return fmt.Sprintf("fills of %d bytes", f.bytes) }

// Operations implements bench.Product.
func (f *fills) Operations() float64 { return float64(f.bytes) }

// Handle implements Model.
func (f *fills) Handle() uintptr { return f.handle }

// Resize implements Model.
func (f *fills) Resize(operations float64) error {
	f.bytes = int64(min(max(operations, 64), maxFill))
	return nil
}

// Enqueue implements bench.Product.
func (f *fills) Enqueue(n int) error {
	for range n {
		if err := f.queue.Fill(mem.Extent{Region: f.memory, Len: f.bytes}, 1); err != nil {
			return err
		}
	}
	return nil
}

// Record implements bench.Product.
func (f *fills) Record() (device.Event, error) { return f.queue.Record() }

// Close implements Model.
func (f *fills) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := f.queue.Close(ctx); err != nil {
		return fmt.Errorf("close fills: %w", err) // which may still write
	}
	if f.memory == nil {
		return nil
	}
	if err := f.dev.Free(f.memory); err != nil {
		return fmt.Errorf("close fills: %w", err)
	}
	f.memory = nil
	return nil
}
