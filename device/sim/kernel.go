package sim

import (
	"fmt"

	"github.com/kvlane/kvlane/device"
)

// kernel is one of kvlane's kernels in Go.
type kernel struct {
	name  string
	args  int // how many it takes
	count int // the argument that says how long the list is that it works through
	run   func(x *executor, a *kernelArg) error
	// pieces and piece name what the kernel has written, after it ran without error.
	pieces func(x *executor, a *kernelArg) uint64
	piece  func(x *executor, a *kernelArg, i uint64) piece
	// resum sums a leaf of piece i anew, which was damaged on its way to the device. Nil where the kernel makes no sums.
	resum func(x *executor, a *kernelArg, i, leaf uint64) error
}

// kernels returns the kernel of that name, or nil. Bulk kernels differ from plain ones in what they cost a GPU, not in what
// they do.
func kernels(name string) *kernel {
	switch name {
	case device.KernelCopyList, device.KernelBulkList:
		return &copyList
	case device.KernelCopyPaged, device.KernelBulkPaged:
		return &copyPaged
	case device.KernelCopyListSum, device.KernelBulkListSum:
		return &copyListSum
	case device.KernelCopyPagedSum, device.KernelBulkPagedSum:
		return &copyPagedSum
	case device.KernelPatternFill:
		return &patternFill
	case device.KernelPatternCheck:
		return &patternCheck
	case device.KernelResident:
		return &resident
	}
	return nil
}

// HasKernel reports whether there is a kernel of that name.
func (q *Queue) HasKernel(name string) bool { return kernels(name) != nil }

func listPieces(_ *executor, a *kernelArg) uint64 { return a[1] }

func pagePieces(_ *executor, a *kernelArg) uint64 { return a[1] * a[3] }

// The kernels; they never change.
var (
	copyList = kernel{
		name: device.KernelCopyList, args: 2, count: 1, run: runCopyList, pieces: listPieces, piece: listPiece,
	}
	copyPaged = kernel{
		name: device.KernelCopyPaged, args: 7, count: 3, run: runCopyPaged, pieces: pagePieces, piece: pagedPiece,
	}
	copyListSum = kernel{
		name: device.KernelCopyListSum, args: 3, count: 1, run: runCopyListSum, pieces: listPieces, piece: listPiece,
		resum: resumList,
	}
	copyPagedSum = kernel{
		name: device.KernelCopyPagedSum, args: 8, count: 3, run: runCopyPagedSum, pieces: pagePieces, piece: pagedPiece,
		resum: resumPaged,
	}
	patternFill = kernel{
		name: device.KernelPatternFill, args: 5, count: 3, run: runPatternFill, pieces: pagePieces, piece: patternPiece,
	}
	patternCheck = kernel{
		name: device.KernelPatternCheck, args: 6, count: 3, run: runPatternCheck,
		pieces: func(_ *executor, a *kernelArg) uint64 { return a[3] },
		piece:  counterPiece,
	}
)

func runCopyList(x *executor, a *kernelArg) error {
	descs, err := x.array(device.KernelCopyList, a[0], a[1], device.CopyDescBytes)
	if err != nil {
		return fmt.Errorf("read descriptors: %w", err)
	}
	for i := 0; len(descs) > 0; i++ {
		if err := x.copy(device.KernelCopyList, desc(descs)); err != nil {
			return fmt.Errorf("descriptor %d: %w", i, err)
		}
		descs = descs[device.CopyDescBytes:]
	}
	return nil
}

func desc(b []byte) piece {
	_ = b[device.CopyDescBytes-1]
	return piece{dst: u64(b), src: u64(b[8:]), n: u64(b[16:])}
}

func listPiece(x *executor, a *kernelArg, i uint64) piece {
	b, err := x.view(device.KernelCopyList, a[0]+i*device.CopyDescBytes, device.CopyDescBytes)
	if err != nil {
		return piece{}
	}
	return desc(b)
}

// The directions of device.KernelCopyPaged.
const (
	pagesToSlots = 1
	slotsToPages = 2
)

func runCopyPaged(x *executor, a *kernelArg) error {
	const call = device.KernelCopyPaged
	if err := checkDirection(call, a); err != nil {
		return err
	}
	pairs, err := x.prepare(call, a)
	if err != nil {
		return err
	}
	for ; len(pairs) > 0; pairs = pairs[device.PairBytes:] {
		page, slot := u32(pairs), u32(pairs[4:])
		for i := range x.planes {
			if err := x.copy(call, x.planes[i].piece(a, page, slot)); err != nil {
				return fmt.Errorf("page %d, slot %d, plane %d: %w", page, slot, i, err)
			}
		}
	}
	return nil
}

func checkDirection(call string, a *kernelArg) error {
	if a[6] != pagesToSlots && a[6] != slotsToPages {
		return errInvalidValue(call, fmt.Sprintf("direction=%d", a[6]), "")
	}
	return nil
}

// prepare reads the planes and returns the pairs of a paged kernel.
func (x *executor) prepare(call string, a *kernelArg) ([]byte, error) {
	if err := x.loadPlanes(call, a[0], a[1]); err != nil {
		return nil, err
	}
	pairs, err := x.array(call, a[2], a[3], device.PairBytes)
	if err != nil {
		return nil, fmt.Errorf("read pairs: %w", err)
	}
	return pairs, nil
}

func (pl *plane) page(page uint64) uint64 { return pl.base + page*pl.stride }

func (pl *plane) piece(a *kernelArg, page, slot uint64) piece {
	p := piece{dst: a[4] + slot*a[5] + pl.slotOff, src: pl.page(page), n: pl.bytes}
	if a[6] == slotsToPages {
		p.dst, p.src = p.src, p.dst
	}
	return p
}

// pair returns pair i/planes of a kernel that ran, and its plane i%planes.
func (x *executor) pair(a *kernelArg, i uint64) (first, second uint64, pl *plane) {
	b, err := x.view("simCorrupt", a[2]+i/a[1]*device.PairBytes, device.PairBytes)
	if err != nil || i%a[1] >= uint64(len(x.planes)) {
		return 0, 0, nil
	}
	return u32(b), u32(b[4:]), &x.planes[i%a[1]]
}

func pagedPiece(x *executor, a *kernelArg, i uint64) piece {
	page, slot, pl := x.pair(a, i)
	if pl == nil {
		return piece{}
	}
	return pl.piece(a, page, slot)
}
