package sim

import (
	"fmt"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/internal/sys/hostmem"
	"github.com/kvlane/kvlane/mem"
)

// runCopyParts copies one part after the other, and says so of each: at once, or where a fault will damage some of it, once that has
// happened (tellParts).
func runCopyParts(x *executor, a *kernelArg) error {
	return x.copyParts(a, device.KernelCopyPaged, runCopyPaged)
}

func runCopyPartsSum(x *executor, a *kernelArg) error {
	return x.copyParts(a, device.KernelCopyPagedSum, runCopyPagedSum)
}

func (x *executor) copyParts(a *kernelArg, call string, run func(*executor, *kernelArg) error) error {
	l := device.PartsArgsOf(a)
	for p := range l.NParts {
		paged, err := x.part(call, &l, p)
		if err != nil {
			return err
		}
		k := paged.Kernel(call, 0)
		if err := run(x, &k.Args); err != nil {
			return fmt.Errorf("part %d: %w", p, err)
		}
		if !x.untold {
			if err := x.tellPart(&l, p); err != nil {
				return err
			}
		}
	}
	return nil
}

// part returns what one part would be as a launch of its own.
func (x *executor) part(call string, l *device.PartsArgs, p uint64) (device.PagedArgs, error) {
	if l.NParts > device.MaxParts {
		return device.PagedArgs{}, errInvalidValue(call, fmt.Sprintf("parts=%d", l.NParts), "")
	}
	b, err := x.view(call, l.Parts+mem.DevAddr(p*device.PartDescBytes), device.PartDescBytes)
	if err != nil {
		return device.PagedArgs{}, fmt.Errorf("read part %d: %w", p, err)
	}
	d := device.ReadPartDesc(b)
	return device.PagedArgs{
		Planes: d.Planes, NPlanes: d.NPlanes, Pairs: d.Pairs, NPairs: d.NPairs,
		Slots: d.Slots, SlotStride: d.SlotStride, Direction: l.Direction, Sums: d.Sums,
	}, nil
}

// tellPart writes the words that say that a part has landed, one a thread block.
func (x *executor) tellPart(l *device.PartsArgs, p uint64) error {
	if l.Done == 0 {
		return nil
	}
	n := uint64(x.ctas) * device.PartDoneBytes
	var none seen
	words, err := x.bytes("simPartDone", l.Done+mem.DevAddr(p*n), n, &none)
	if err != nil {
		return fmt.Errorf("say that part %d has landed: %w", p, err)
	}
	for ; len(words) > 0; words = words[device.PartDoneBytes:] {
		hostmem.StoreUint64(words, 1)
	}
	return nil
}

// tellParts is tellPart for all.
func tellParts(x *executor, a *kernelArg) error {
	l := device.PartsArgsOf(a)
	for p := range l.NParts {
		if err := x.tellPart(&l, p); err != nil {
			return err
		}
	}
	return nil
}

func partsPieces(x *executor, a *kernelArg) (n uint64) {
	l := device.PartsArgsOf(a)
	for p := range l.NParts {
		if paged, err := x.part(device.KernelCopyParts, &l, p); err == nil {
			n += paged.NPlanes * paged.NPairs
		}
	}
	return n
}

// partOf returns the part that piece i is of, and its number there; x.planes are those of that part.
func (x *executor) partOf(a *kernelArg, i uint64) (k device.Kernel, at uint64, ok bool) {
	l := device.PartsArgsOf(a)
	for p := range l.NParts {
		paged, err := x.part(device.KernelCopyParts, &l, p)
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
		return paged.Kernel(device.KernelCopyPaged, 0), i, x.planesOf(paged.Planes, paged.NPlanes, size) == nil
	}
	return k, 0, false
}

func (x *executor) planesOf(at mem.DevAddr, n, size uint64) error {
	b, err := x.array(device.KernelCopyParts, at, n, size)
	if err != nil {
		return err
	}
	x.planes = x.planes[:0]
	for ; len(b) > 0; b = b[size:] {
		x.planes = append(x.planes, device.ReadPlaneDesc(b))
	}
	return nil
}

func partsPiece(x *executor, a *kernelArg, i uint64) piece {
	k, at, ok := x.partOf(a, i)
	if !ok {
		return piece{}
	}
	return pagedPiece(x, &k.Args, at)
}

func resumParts(x *executor, a *kernelArg, i, leaf uint64) error {
	k, at, ok := x.partOf(a, i)
	if !ok {
		return nil
	}
	return resumPaged(x, &k.Args, at, leaf)
}
