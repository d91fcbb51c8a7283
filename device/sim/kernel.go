package sim

import (
	"fmt"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/mem"
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
	// tell says what has landed where run did not (executor.untold). Nil where the kernel says nothing.
	tell func(x *executor, a *kernelArg) error
}

// kernels returns the kernel of that name, or nil.
func kernels(name string) *kernel {
	switch name {
	case device.KernelCopyList:
		return &copyList
	case device.KernelCopyPaged:
		return &copyPaged
	case device.KernelCopyListSum:
		return &copyListSum
	case device.KernelCopyPagedSum:
		return &copyPagedSum
	case device.KernelCopyParts:
		return &copyParts
	case device.KernelCopyPartsSum:
		return &copyPartsSum
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

func listPieces(_ *executor, a *kernelArg) uint64 { return device.ListArgsOf(a).Count }

func pagePieces(_ *executor, a *kernelArg) uint64 {
	p := device.PagedArgsOf(a)
	return p.NPlanes * p.NPairs
}

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
	copyParts = kernel{
		name: device.KernelCopyParts, args: 4, count: 1, run: runCopyParts, pieces: partsPieces, piece: partsPiece, tell: tellParts,
	}
	copyPartsSum = kernel{
		name: device.KernelCopyPartsSum, args: 4, count: 1, run: runCopyPartsSum, pieces: partsPieces, piece: partsPiece,
		resum: resumParts, tell: tellParts,
	}
	patternFill = kernel{
		name: device.KernelPatternFill, args: 5, count: 3, run: runPatternFill, pieces: pagePieces, piece: patternPiece,
	}
	patternCheck = kernel{
		name: device.KernelPatternCheck, args: 6, count: 3, run: runPatternCheck,
		pieces: func(_ *executor, a *kernelArg) uint64 { return device.PatternArgsOf(a).NPairs },
		piece:  counterPiece,
	}
)

func runCopyList(x *executor, a *kernelArg) error {
	l := device.ListArgsOf(a)
	descs, err := x.array(device.KernelCopyList, l.Descs, l.Count, device.CopyDescBytes)
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
	d := device.ReadCopyDesc(b)
	return piece{dst: d.Dst, src: d.Src, n: d.Bytes}
}

func listPiece(x *executor, a *kernelArg, i uint64) piece {
	b, err := x.view(device.KernelCopyList, device.ListArgsOf(a).Descs+mem.DevAddr(i*device.CopyDescBytes), device.CopyDescBytes)
	if err != nil {
		return piece{}
	}
	return desc(b)
}

func runCopyPaged(x *executor, a *kernelArg) error {
	const call = device.KernelCopyPaged
	p := device.PagedArgsOf(a)
	if err := checkDirection(call, p.Direction); err != nil {
		return err
	}
	pairs, err := x.prepare(call, p.Planes, p.NPlanes, p.Pairs, p.NPairs)
	if err != nil {
		return err
	}
	if x.still {
		return nil
	}
	for ; len(pairs) > 0; pairs = pairs[device.PairBytes:] {
		page, slot := device.ReadPair(pairs)
		for i := range x.planes {
			if err := x.copy(call, pieceOf(&x.planes[i], &p, page, slot)); err != nil {
				return fmt.Errorf("page %d, slot %d, plane %d: %w", page, slot, i, err)
			}
		}
	}
	return nil
}

func checkDirection(call string, dir uint64) error {
	if dir != uint64(mem.ToSlots) && dir != uint64(mem.ToPages) {
		return errInvalidValue(call, fmt.Sprintf("direction=%d", dir), "")
	}
	return nil
}

// prepare reads the planes and returns the pairs of a paged kernel.
func (x *executor) prepare(call string, planes mem.DevAddr, nplanes uint64, at mem.DevAddr, npairs uint64) ([]byte, error) {
	if err := x.loadPlanes(call, planes, nplanes); err != nil {
		return nil, err
	}
	pairs, err := x.array(call, at, npairs, device.PairBytes)
	if err != nil {
		return nil, fmt.Errorf("read pairs: %w", err)
	}
	return pairs, nil
}

func pageOf(pl *device.PlaneDesc, page uint32) mem.DevAddr {
	return pl.Base + mem.DevAddr(uint64(page)*pl.Stride)
}

func pieceOf(pl *device.PlaneDesc, a *device.PagedArgs, page, slot uint32) piece {
	p := piece{dst: a.Slots + mem.DevAddr(uint64(slot)*a.SlotStride+pl.SlotOff), src: pageOf(pl, page), n: pl.Bytes}
	if a.Direction == uint64(mem.ToPages) {
		p.dst, p.src = p.src, p.dst
	}
	return p
}

// pair returns pair i/planes of a kernel that ran over so many planes, and its plane i%planes.
func (x *executor) pair(pairs mem.DevAddr, planes, i uint64) (first, second uint32, pl *device.PlaneDesc) {
	b, err := x.view("simCorrupt", pairs+mem.DevAddr(i/planes*device.PairBytes), device.PairBytes)
	if err != nil || i%planes >= uint64(len(x.planes)) {
		return 0, 0, nil
	}
	first, second = device.ReadPair(b)
	return first, second, &x.planes[i%planes]
}

func pagedPiece(x *executor, a *kernelArg, i uint64) piece {
	p := device.PagedArgsOf(a)
	page, slot, pl := x.pair(p.Pairs, p.NPlanes, i)
	if pl == nil {
		return piece{}
	}
	return pieceOf(pl, &p, page, slot)
}
