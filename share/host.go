package share

import (
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/sys/hostmem"
	"github.com/kvlane/kvlane/mem"
)

// HostMemory is host memory that other processes can import.
type HostMemory struct {
	dev    device.Device
	bytes  []byte
	fd     int
	region *mem.Region
	mu     sync.Mutex
}

var _ Source = (*HostMemory)(nil)

// AllocHost allocates zeroed host memory that can be exported. It is pinned for dev, or pageable if
// dev is nil.
func AllocHost(dev device.Device, bytes int64) (*HostMemory, error) {
	b, fd, err := hostmem.AllocShared(bytes)
	if err != nil {
		return nil, fmt.Errorf("allocate host memory to share: %w", err)
	}
	h := &HostMemory{dev: dev, bytes: b, fd: fd}
	if dev == nil {
		h.region, err = hostmem.Region(b)
	} else {
		h.region, err = dev.RegisterHost(b)
	}
	if err != nil {
		return nil, fmt.Errorf("allocate host memory to share: %w", errors.Join(err, hostmem.Free(b), unix.Close(fd)))
	}
	return h, nil
}

// Region returns the memory.
func (h *HostMemory) Region() *mem.Region { return h.region }

// HandleTypes implements Source.
func (h *HostMemory) HandleTypes() []device.HandleType {
	return []device.HandleType{device.HandleMemFD}
}

// ExportMemory implements Source. r must lie in the region.
func (h *HostMemory) ExportMemory(r *mem.Region, t device.HandleType) (device.Handle, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	own := h.region
	switch {
	case t != device.HandleMemFD:
		return device.Handle{}, fmt.Errorf("host memory has no handle of type %s: %w", t, errdefs.ErrNotSupported)
	case h.bytes == nil:
		return device.Handle{}, fmt.Errorf("host memory: %w", errdefs.ErrClosed)
	case r == nil || r.CPU() < own.CPU() || r.CPU()-own.CPU() > mem.CPUAddr(own.Len()) || r.Len() > own.Len()-int64(r.CPU()-own.CPU()):
		return device.Handle{}, fmt.Errorf("%s is not part of the %s: %w", r, own, errdefs.ErrInvalid)
	}
	fd, err := unix.FcntlInt(uintptr(h.fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return device.Handle{}, fmt.Errorf("export host memory: %w", err)
	}
	return device.Handle{Type: t, FD: fd, Bytes: own.Len(), Off: int64(r.CPU() - own.CPU())}, nil
}

// Close frees the memory. Its export must be withdrawn before. After an error it may be retried;
// after success it returns nil.
func (h *HostMemory) Close() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.bytes == nil {
		return nil
	}
	if h.dev != nil {
		if err := h.dev.Free(h.region); err != nil {
			return err
		}
		h.dev = nil
	}
	if err := hostmem.Free(h.bytes); err != nil {
		return err
	}
	h.bytes = nil
	return unix.Close(h.fd)
}
