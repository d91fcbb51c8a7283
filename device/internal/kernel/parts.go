package kernel

import (
	"fmt"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/internal/sys/hostmem"
	"github.com/kvlane/kvlane/mem"
)

// runCopyParts copies one part after another, and reports each as completed. If an injected fault
// will damage the bytes, notifyParts reports the parts after the damage.
func runCopyParts(m *Machine, a *Args) error {
	return m.copyParts(a, device.KernelCopyPaged, runCopyPaged)
}

func runCopyPartsSum(m *Machine, a *Args) error {
	return m.copyParts(a, device.KernelCopyPagedSum, runCopyPagedSum)
}

func (m *Machine) copyParts(a *Args, call string, run func(*Machine, *Args) error) error {
	l := device.PartsArgsOf(a)
	for p := range l.NParts {
		paged, err := m.part(call, &l, p)
		if err != nil {
			return err
		}
		m.args = paged.Kernel(call, 0).Args
		if err := run(m, &m.args); err != nil {
			return fmt.Errorf("part %d: %w", p, err)
		}
		if !m.Silent {
			if err := m.notifyPart(&l, p); err != nil {
				return err
			}
		}
	}
	return nil
}

// part returns the arguments of one part as a separate launch.
func (m *Machine) part(call string, l *device.PartsArgs, p uint64) (device.PagedArgs, error) {
	if l.NParts > device.MaxParts {
		return device.PagedArgs{}, errInvalidValue(call, fmt.Sprintf("parts=%d", l.NParts))
	}
	b, err := m.View(call, l.Parts+mem.DevAddr(p*device.PartDescBytes), device.PartDescBytes)
	if err != nil {
		return device.PagedArgs{}, fmt.Errorf("read part %d: %w", p, err)
	}
	d := device.ReadPartDesc(b)
	return device.PagedArgs{
		Planes: d.Planes, NPlanes: d.NPlanes, Pairs: d.Pairs, NPairs: d.NPairs,
		Slots: d.Slots, SlotStride: d.SlotStride, Direction: l.Direction, Sums: d.Sums,
	}, nil
}

// notifyPart writes the words that report a part as completed, one per thread block.
func (m *Machine) notifyPart(l *device.PartsArgs, p uint64) error {
	if l.Done == 0 {
		return nil
	}
	n := uint64(m.CTAs) * device.PartDoneBytes
	words, err := m.Memory.Bytes("notify part", l.Done+mem.DevAddr(p*n), n)
	if err != nil {
		return fmt.Errorf("report part %d as completed: %w", p, err)
	}
	for ; len(words) > 0; words = words[device.PartDoneBytes:] {
		hostmem.StoreUint64(words, 1)
	}
	return nil
}

// notifyParts calls notifyPart for all parts.
func notifyParts(m *Machine, a *Args) error {
	l := device.PartsArgsOf(a)
	for p := range l.NParts {
		if err := m.notifyPart(&l, p); err != nil {
			return err
		}
	}
	return nil
}

func partsPieces(m *Machine, a *Args) (n uint64) {
	l := device.PartsArgsOf(a)
	for p := range l.NParts {
		if paged, err := m.part(device.KernelCopyParts, &l, p); err == nil {
			n += paged.NPlanes * paged.NPairs
		}
	}
	return n
}

// partOf returns the part that contains piece i, and the index of the piece in it. It sets m.planes
// to the planes of that part.
func (m *Machine) partOf(a *Args, i uint64) (k device.Kernel, at uint64, ok bool) {
	l := device.PartsArgsOf(a)
	for p := range l.NParts {
		paged, err := m.part(device.KernelCopyParts, &l, p)
		if err != nil {
			return k, 0, false
		}
		if n := paged.NPlanes * paged.NPairs; i >= n {
			i -= n
			continue
		}
		size := uint64(device.PlaneDescBytes)
		if paged.Sums != 0 {
			size = device.PlaneSumDescBytes
		}
		return paged.Kernel(device.KernelCopyPaged, 0), i, m.loadPlanes(device.KernelCopyParts, paged.Planes, paged.NPlanes, size) == nil
	}
	return k, 0, false
}

func partsPiece(m *Machine, a *Args, i uint64) Piece {
	k, at, ok := m.partOf(a, i)
	if !ok {
		return Piece{}
	}
	return pagedPiece(m, &k.Args, at)
}

func resumParts(m *Machine, a *Args, i, leaf uint64) error {
	k, at, ok := m.partOf(a, i)
	if !ok {
		return nil
	}
	return resumPaged(m, &k.Args, at, leaf)
}
