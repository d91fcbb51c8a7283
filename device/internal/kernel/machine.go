package kernel

import (
	"encoding/binary"
	"fmt"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
)

// Memory maps a device's addresses to bytes.
type Memory interface {
	// Bytes returns the n bytes at addr; n is at least one. They stay valid until the kernel has
	// run.
	Bytes(call string, addr mem.DevAddr, n uint64) ([]byte, error)
	// Copy moves one piece of at least one byte.
	Copy(call string, p Piece) error
}

// Piece is a range of bytes to copy, by device address.
type Piece struct {
	Dst, Src mem.DevAddr
	N        uint64
}

// Args are the arguments of a launch.
type Args = [device.MaxKernelArgs]uint64

// Machine runs kernels, one at a time.
type Machine struct {
	Memory Memory
	// CTAs is the number of thread blocks of the launch. Kernels that report completion per thread
	// block use it.
	CTAs int
	// Still makes kernels move nothing. Sums are then those of zeros.
	Still bool
	// Silent prevents Run from reporting completed parts. Kernel.Notify reports them later.
	Silent bool
	// Divide calls f for the range 0 to n, which stands for this number of bytes. It may split the
	// range and call f in parallel on machines with the same memory. If it is nil, f is called once
	// with this machine.
	Divide func(n, bytes uint64, f func(m *Machine, from, to uint64) error) error

	planes []device.PlaneDesc // of the running kernel
	args   Args               // of the running part
}

// divide calls f for 0 to n, on machines with the planes of this machine.
func (m *Machine) divide(n, bytes uint64, f func(m *Machine, from, to uint64) error) error {
	if m.Divide == nil {
		return f(m, 0, n)
	}
	planes := m.planes
	return m.Divide(n, bytes, func(w *Machine, from, to uint64) error {
		if w != m {
			w.planes = append(w.planes[:0], planes...)
		}
		return f(w, from, to)
	})
}

// View returns n bytes of arguments or descriptors at addr, which must be aligned to 8.
func (m *Machine) View(call string, addr mem.DevAddr, n uint64) ([]byte, error) {
	if n == 0 {
		return nil, nil
	}
	if addr%8 != 0 {
		return nil, errMisaligned(call, addr)
	}
	return m.Memory.Bytes(call, addr, n)
}

// array is View for count elements of size bytes. It detects overflow of their product.
func (m *Machine) array(call string, addr mem.DevAddr, count, size uint64) ([]byte, error) {
	const most = 1 << 48
	if count > most/size {
		return nil, native(call, fmt.Sprintf("address=%#x, elements=%d", addr, count), 700, "ILLEGAL_ADDRESS", "beyond the address space")
	}
	return m.View(call, addr, count*size)
}

// copy moves one piece. Like hardware, it does not check an empty piece.
func (m *Machine) copy(call string, p Piece) error {
	if p.N == 0 || m.Still {
		return nil
	}
	return m.Memory.Copy(call, p)
}

// loadPlanes reads the descriptors of the running kernel, of size bytes each.
func (m *Machine) loadPlanes(call string, addr mem.DevAddr, count, size uint64) error {
	b, err := m.array(call, addr, count, size)
	if err != nil {
		return fmt.Errorf("read planes: %w", err)
	}
	m.planes = m.planes[:0]
	for ; len(b) > 0; b = b[size:] {
		m.planes = append(m.planes, device.ReadPlaneDesc(b))
	}
	return nil
}

// pageBytes returns the number of bytes of a page in all planes of the running kernel.
func (m *Machine) pageBytes() (n uint64) {
	for i := range m.planes {
		n += m.planes[i].Bytes
	}
	return n
}

func u64(b []byte) uint64 { return binary.LittleEndian.Uint64(b) }

// native returns the error of a kernel with invalid arguments. The codes are those of CUDA for the
// same failure.
func native(call, args string, code int, name, text string) error {
	return &device.Error{Call: call, Args: args, Code: code, Name: "KERNEL_ERROR_" + name, Text: text, Kind: errdefs.ErrInvalid}
}

func errInvalidValue(call, args string) error { return native(call, args, 1, "INVALID_VALUE", "") }

func errMisaligned(call string, addr mem.DevAddr) error {
	return native(call, fmt.Sprintf("address=%#x", addr), 716, "MISALIGNED_ADDRESS", "not aligned to 8 bytes")
}
