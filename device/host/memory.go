package host

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/internal/kernel"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/leak"
	"github.com/kvlane/kvlane/internal/sys/hostmem"
	"github.com/kvlane/kvlane/mem"
)

// span is the memory of a region.
type span struct {
	bytes []byte
	owned bool // mapped by the device; otherwise by the caller of RegisterHost
	kind  leak.Kind
}

// Alloc maps memory. The options have no effect.
func (d *Device) Alloc(bytes int64, _ device.AllocOptions) (*mem.Region, error) {
	r, err := d.alloc(mem.KindDevice, leak.DeviceBytes, bytes)
	if err != nil {
		return nil, fmt.Errorf("allocate device memory: %w", err)
	}
	return r, nil
}

// AllocHost maps zeroed memory with a CPU view. It is not page-locked.
func (d *Device) AllocHost(bytes int64) (*mem.Region, error) {
	r, err := d.alloc(mem.KindHostPinned, leak.PinnedBytes, bytes)
	if err != nil {
		return nil, fmt.Errorf("allocate pinned memory: %w", err)
	}
	return r, nil
}

func (d *Device) alloc(kind mem.Kind, counted leak.Kind, bytes int64) (*mem.Region, error) {
	b, err := hostmem.Alloc(bytes)
	if errors.Is(err, errdefs.ErrNoMemory) {
		native := &device.Error{Call: "mmap", Args: fmt.Sprintf("bytes=%d", bytes), Code: int(unix.ENOMEM), Name: "ENOMEM", Kind: errdefs.ErrNoMemory}
		return nil, fmt.Errorf("%w: %w", native, err)
	}
	if err != nil {
		return nil, err
	}
	r, err := d.addRegion(kind, span{bytes: b, owned: true, kind: counted})
	if err != nil {
		return nil, errors.Join(err, hostmem.Free(b))
	}
	return r, nil
}

// RegisterHost returns a region of pinned memory for b, which the caller still owns. It returns
// ErrInvalid for Go heap memory, and ErrExists for memory that overlaps other pinned memory.
func (d *Device) RegisterHost(b []byte) (*mem.Region, error) {
	var err error
	var r *mem.Region
	switch {
	case len(b) == 0:
		err = errInvalid("no memory is given")
	case hostmem.OnGoHeap(b):
		err = errInvalid("%d bytes at %#x are Go heap memory, which the garbage collector may reuse", len(b), hostmem.Addr(b))
	default:
		r, err = d.addRegion(mem.KindHostPinned, span{bytes: b, kind: leak.RegisteredBytes})
	}
	if err != nil {
		return nil, fmt.Errorf("register host memory: %w", err)
	}
	return r, nil
}

// addRegion creates the region of s and records it.
func (d *Device) addRegion(kind mem.Kind, s span) (*mem.Region, error) {
	at := hostmem.Addr(s.bytes)
	spec := mem.RegionSpec{Kind: kind, Len: int64(len(s.bytes)), Dev: mem.DevAddr(at)}
	if kind == mem.KindHostPinned {
		spec.CPU, spec.Bytes = at, s.bytes
	}
	r, err := mem.NewRegion(spec)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, errClosed()
	}
	for o := range d.spans {
		if o.Dev() < r.Dev()+mem.DevAddr(r.Len()) && r.Dev() < o.Dev()+mem.DevAddr(o.Len()) {
			return nil, fmt.Errorf("the %d bytes at %#x already belong to the device: %w", o.Len(), uint64(o.Dev()), errdefs.ErrExists)
		}
	}
	d.spans[r] = s
	leak.Add(s.kind, r.Len())
	return r, nil
}

// Free releases r. It does not wait.
func (d *Device) Free(r *mem.Region) error {
	d.mu.Lock()
	s, ok := d.spans[r]
	delete(d.spans, r)
	d.mu.Unlock()
	if !ok {
		return fmt.Errorf("free %s: %w", r, errInvalid("it is not of this device, or was freed already"))
	}
	if err := s.release(r); err != nil {
		return fmt.Errorf("free %s: %w", r, err)
	}
	return nil
}

// release frees the memory of r, which is no longer in spans.
func (s span) release(r *mem.Region) error {
	leak.Add(s.kind, -r.Len())
	if !s.owned {
		return nil
	}
	return hostmem.Free(s.bytes)
}

// check returns the errors of an extent that can be detected before its use. Memory of kind device
// need not be allocated by the device, because the address of any memory of the host program is
// valid.
func (d *Device) check(e mem.Extent) error {
	if err := e.Validate(); err != nil {
		return err
	}
	r := e.Region
	switch {
	case r.Dev() == 0:
		return errInvalid("%s has no device address", r)
	case r.Device() != d.info.Index || r.CPU() != 0 && uint64(r.CPU()) != uint64(r.Dev()):
		return errInvalid("%s belongs to another device", r)
	}
	return nil
}

// space implements kernel.Memory for the process's address space.
type space struct{}

var _ kernel.Memory = space{}

// lowest is below every address that the kernel maps for a process. A fault below it would be
// reported as a nil pointer.
const lowest = 1 << 12

// Bytes implements kernel.Memory. It detects only errors that are visible without an access.
func (space) Bytes(call string, addr mem.DevAddr, n uint64) ([]byte, error) {
	const most = 1 << 56
	if addr < lowest || addr > most || n > most {
		return nil, errIllegal(call, addr, n)
	}
	return hostmem.View(mem.CPUAddr(addr), int(n)), nil
}

// Copy implements kernel.Memory.
func (s space) Copy(call string, p kernel.Piece) error {
	dst, err := s.Bytes(call, p.Dst, p.N)
	if err != nil {
		return fmt.Errorf("write: %w", err)
	}
	src, err := s.Bytes(call, p.Src, p.N)
	if err != nil {
		return fmt.Errorf("read: %w", err)
	}
	copy(dst, src)
	return nil
}

func errIllegal(call string, addr mem.DevAddr, n uint64) error {
	return &device.Error{
		Call: call, Args: fmt.Sprintf("address=%#x, bytes=%d", uint64(addr), n), Code: int(unix.SIGSEGV), Name: "SIGSEGV",
		Text: "no such memory at this address", Kind: errdefs.ErrInvalid,
	}
}
