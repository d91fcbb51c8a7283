package capi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/kvlane/kvlane"
	devices "github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/share"
)

const (
	// allocatorProbeTime is the maximum duration of the probe for handle types of a device.
	allocatorProbeTime = time.Minute
	// freeTime is the maximum time for which Deallocate waits for the program's stream.
	freeTime = time.Minute
)

// allocators has one allocator for each device. It allocates device memory that other processes can
// import. Allocators stay open until the process ends.
type allocators struct {
	mu  sync.Mutex
	all map[int]*allocator
}

type allocator struct {
	driver  kvlane.Driver
	dev     devices.StreamAdopter
	by      *share.Allocator
	regions map[uint64]*mem.Region // by address; guarded by allocators.mu
	bytes   int64
	kept    int64
}

// AllocatorStats are the statistics of an allocator.
type AllocatorStats struct {
	Handle      string // handle type that the memory supports
	Allocations int
	Bytes       int64
	Kept        int64 // allocations not freed because the device may still use them
}

// OpenAllocator opens the allocator of a device of the driver "cuda", which is the default, or
// "sim". If the allocator is open, it does nothing. It returns ErrNotSupported with the reason for
// each handle type if the memory cannot be exported, and ErrExists if the allocator was opened with
// another driver.
func (l *Library) OpenAllocator(driver string, index int) error {
	l.allocators.mu.Lock()
	defer l.allocators.mu.Unlock()
	_, err := l.allocator(kvlane.Driver(driver), index)
	return err
}

// allocator returns the allocator of a device. An empty driver matches any. The caller holds the
// mutex.
func (l *Library) allocator(driver kvlane.Driver, index int) (*allocator, error) {
	a := l.allocators.all[index]
	switch {
	case a != nil && (driver == "" || driver == a.driver):
		return a, nil
	case a != nil:
		return nil, fmt.Errorf("open allocator: device %d has one of driver %s: %w", index, a.driver, errdefs.ErrExists)
	case driver == "":
		driver = kvlane.CUDA
	}
	dev, err := kvlane.OpenDevice(kvlane.DeviceConfig{Driver: driver, Index: index})
	if err != nil {
		return nil, fmt.Errorf("open allocator: %w", err)
	}
	sharer, shares := dev.(devices.Sharer)
	adopter, adopts := dev.(devices.StreamAdopter)
	if !shares || !adopts {
		return nil, errors.Join(fmt.Errorf("open allocator: driver %s has no memory for other processes: %w", driver, errdefs.ErrNotSupported), dev.Close())
	}
	ctx, cancel := context.WithTimeout(context.Background(), allocatorProbeTime)
	defer cancel()
	by, err := share.NewAllocator(sharer, share.Probe(ctx, sharer, share.ProbeOptions{}))
	if err != nil {
		return nil, errors.Join(err, dev.Close())
	}
	a = &allocator{driver: driver, dev: adopter, by: by, regions: make(map[uint64]*mem.Region)}
	if l.allocators.all == nil {
		l.allocators.all = make(map[int]*allocator)
	}
	l.allocators.all[index] = a
	return a, nil
}

// Allocate allocates device memory and returns its address. It returns 0 if bytes is 0.
func (l *Library) Allocate(index int, bytes int64) (uint64, error) {
	if bytes <= 0 {
		if bytes < 0 {
			return 0, invalid("%d bytes cannot be allocated", bytes)
		}
		return 0, nil
	}
	l.allocators.mu.Lock()
	defer l.allocators.mu.Unlock()
	a, err := l.allocator("", index)
	if err != nil {
		return 0, err
	}
	r, err := a.by.Alloc(bytes)
	if err != nil {
		return 0, err
	}
	a.regions[uint64(r.Dev())] = r
	a.bytes += bytes
	return uint64(r.Dev()), nil
}

// Deallocate frees an allocation after the work that the program has enqueued on a stream. If it
// cannot wait for this work, the memory stays allocated and counts as Kept.
func (l *Library) Deallocate(index int, address, stream uint64) error {
	if address == 0 {
		return nil
	}
	l.allocators.mu.Lock()
	a := l.allocators.all[index]
	var r *mem.Region
	if a != nil {
		r = a.regions[address]
		delete(a.regions, address)
	}
	l.allocators.mu.Unlock()
	if r == nil {
		return invalid("no allocation at %#x of device %d", address, index)
	}
	var err error
	if a.driver != kvlane.Sim || stream != 0 { // sim has no default stream
		err = idle(a.dev, uintptr(stream)) // the mutex is not held, so that other calls can allocate
	}
	if err == nil {
		err = a.dev.Free(r)
	}
	l.allocators.mu.Lock()
	defer l.allocators.mu.Unlock()
	if err != nil {
		a.regions[address] = r
		a.kept++
		return fmt.Errorf("free %d bytes at %#x, which stay: %w", r.Len(), address, err)
	}
	a.bytes -= r.Len()
	return nil
}

// idle waits for the work that the program has enqueued on a stream.
func idle(dev devices.StreamAdopter, stream uintptr) error {
	s, err := dev.AdoptStream(stream)
	if err != nil {
		return err
	}
	e, err := s.Record()
	if err != nil {
		return err
	}
	defer e.Close()
	ctx, cancel := context.WithTimeout(context.Background(), freeTime)
	defer cancel()
	return e.Wait(ctx)
}

// AllocatorStats returns the statistics of the allocator of a device as JSON. It returns
// ErrNotFound if the allocator is not open.
func (l *Library) AllocatorStats(index int) ([]byte, error) {
	l.allocators.mu.Lock()
	defer l.allocators.mu.Unlock()
	a := l.allocators.all[index]
	if a == nil {
		return nil, fmt.Errorf("allocator of device %d: %w", index, errdefs.ErrNotFound)
	}
	return json.Marshal(AllocatorStats{Handle: a.by.Type().String(), Allocations: len(a.regions), Bytes: a.bytes, Kept: a.kept})
}
