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
	// allocatorProbeTime bounds finding out by what handles a device's memory can be exported.
	allocatorProbeTime = time.Minute
	// freeTime bounds how long freeing waits for the program's stream.
	freeTime = time.Minute
)

// allocators make device memory that other processes can import, one for each device, which stays open until the process ends.
type allocators struct {
	mu  sync.Mutex
	all map[int]*allocator
}

type allocator struct {
	driver  kvlane.Driver
	dev     devices.StreamAdopter
	by      *share.Allocator
	regions map[uint64]*mem.Region // by address; with allocators.mu
	bytes   int64
	kept    int64
}

// AllocatorStats is what an allocator has.
type AllocatorStats struct {
	Handle      string // type of the handles that the memory has
	Allocations int
	Bytes       int64
	Kept        int64 // times that memory was to be freed and stayed, as nobody could tell that the device does not use it
}

// OpenAllocator opens the allocator of a device of "cuda", which is what is opened by itself, or of "sim". Opening it again does nothing.
// ErrNotSupported, with each type's reason, where none of its memory can be exported; ErrExists for that of another driver.
func (l *Library) OpenAllocator(driver string, index int) error {
	l.allocators.mu.Lock()
	defer l.allocators.mu.Unlock()
	_, err := l.allocator(kvlane.Driver(driver), index)
	return err
}

// allocator returns that of a device; any driver's where that is empty. The caller holds the mutex.
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

// Allocate returns the address of so many bytes of a device's memory. No bytes are at 0.
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

// Deallocate frees what is at an address, once what the program has enqueued on that stream is done. What nobody can say that of stays
// allocated, and is counted.
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
		return invalid("nothing is allocated at %#x of device %d", address, index)
	}
	var err error
	if a.driver != kvlane.Sim || stream != 0 { // which has no default stream
		err = idle(a.dev, uintptr(stream)) // others allocate meanwhile
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

// idle waits until what the program has enqueued on a stream is done.
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

// AllocatorStats returns, as JSON, what the allocator of a device has. ErrNotFound if it is not open.
func (l *Library) AllocatorStats(index int) ([]byte, error) {
	l.allocators.mu.Lock()
	defer l.allocators.mu.Unlock()
	a := l.allocators.all[index]
	if a == nil {
		return nil, fmt.Errorf("allocator of device %d: %w", index, errdefs.ErrNotFound)
	}
	return json.Marshal(AllocatorStats{Handle: a.by.Type().String(), Allocations: len(a.regions), Bytes: a.bytes, Kept: a.kept})
}
