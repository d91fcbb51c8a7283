package kernel

import (
	"fmt"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/mem"
)

// Kernel is one of kvlane's kernels in Go.
type Kernel struct {
	Name  string
	NArgs int // number of arguments
	Count int // index of the argument that holds the length of the kernel's list
	Run   func(m *Machine, a *Args) error
	// Pieces and Piece list the bytes that the kernel has written. Call them after a run without
	// error, on the machine that ran it.
	Pieces func(m *Machine, a *Args) uint64
	Piece  func(m *Machine, a *Args, i uint64) Piece
	// Resum recomputes the sum of a leaf of piece i after the piece was damaged on purpose. It is
	// nil if the kernel computes no sums.
	Resum func(m *Machine, a *Args, i, leaf uint64) error
	// Notify reports completed parts after a run with Machine.Silent. It is nil if the kernel
	// reports nothing.
	Notify func(m *Machine, a *Args) error
}

// Named returns the kernel with this name, or nil.
func Named(name string) *Kernel {
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
	}
	return nil
}

func listPieces(_ *Machine, a *Args) uint64 { return device.ListArgsOf(a).Count }

func pagePieces(_ *Machine, a *Args) uint64 {
	p := device.PagedArgsOf(a)
	return p.NPlanes * p.NPairs
}

// The kernels. They do not change.
var (
	copyList = Kernel{
		Name: device.KernelCopyList, NArgs: 2, Count: 1, Run: runCopyList, Pieces: listPieces, Piece: listPiece,
	}
	copyPaged = Kernel{
		Name: device.KernelCopyPaged, NArgs: 7, Count: 3, Run: runCopyPaged, Pieces: pagePieces, Piece: pagedPiece,
	}
	copyListSum = Kernel{
		Name: device.KernelCopyListSum, NArgs: 3, Count: 1, Run: runCopyListSum, Pieces: listPieces, Piece: listPiece,
		Resum: resumList,
	}
	copyPagedSum = Kernel{
		Name: device.KernelCopyPagedSum, NArgs: 8, Count: 3, Run: runCopyPagedSum, Pieces: pagePieces, Piece: pagedPiece,
		Resum: resumPaged,
	}
	copyParts = Kernel{
		Name: device.KernelCopyParts, NArgs: 4, Count: 1, Run: runCopyParts, Pieces: partsPieces, Piece: partsPiece, Notify: notifyParts,
	}
	copyPartsSum = Kernel{
		Name: device.KernelCopyPartsSum, NArgs: 4, Count: 1, Run: runCopyPartsSum, Pieces: partsPieces, Piece: partsPiece,
		Resum: resumParts, Notify: notifyParts,
	}
	patternFill = Kernel{
		Name: device.KernelPatternFill, NArgs: 5, Count: 3, Run: runPatternFill, Pieces: pagePieces, Piece: patternPiece,
	}
	patternCheck = Kernel{
		Name: device.KernelPatternCheck, NArgs: 6, Count: 3, Run: runPatternCheck,
		Pieces: func(_ *Machine, a *Args) uint64 { return device.PatternArgsOf(a).NPairs },
		Piece:  counterPiece,
	}
)

func runCopyList(m *Machine, a *Args) error {
	const call = device.KernelCopyList
	return m.eachPiece(call, a, func(m *Machine, _ uint64, p Piece) error { return m.copy(call, p) })
}

// eachPiece calls f with every piece of a list and its index, possibly in parallel on several
// machines.
func (m *Machine) eachPiece(call string, a *Args, f func(m *Machine, i uint64, p Piece) error) error {
	l := device.ListArgsOf(a)
	descs, err := m.array(call, l.Descs, l.Count, device.CopyDescBytes)
	if err != nil {
		return fmt.Errorf("read descriptors: %w", err)
	}
	bytes := uint64(0)
	for b := descs; m.Divide != nil && len(b) > 0; b = b[device.CopyDescBytes:] {
		bytes += desc(b).N
	}
	return m.divide(l.Count, bytes, func(m *Machine, from, to uint64) error {
		for i := from; i < to; i++ {
			if err := f(m, i, desc(descs[i*device.CopyDescBytes:])); err != nil {
				return fmt.Errorf("descriptor %d: %w", i, err)
			}
		}
		return nil
	})
}

func desc(b []byte) Piece {
	d := device.ReadCopyDesc(b)
	return Piece{Dst: d.Dst, Src: d.Src, N: d.Bytes}
}

func listPiece(m *Machine, a *Args, i uint64) Piece {
	b, err := m.View(device.KernelCopyList, device.ListArgsOf(a).Descs+mem.DevAddr(i*device.CopyDescBytes), device.CopyDescBytes)
	if err != nil {
		return Piece{}
	}
	return desc(b)
}

func runCopyPaged(m *Machine, a *Args) error {
	const call = device.KernelCopyPaged
	if err := checkDirection(call, device.PagedArgsOf(a).Direction); err != nil {
		return err
	}
	return m.eachPlane(call, a, device.PlaneDescBytes, func(m *Machine, p Piece, _, _ uint64) error { return m.copy(call, p) })
}

// eachPlane calls f with the piece of every plane of every pair, and the indexes of pair and plane.
// It may call f in parallel on several machines.
func (m *Machine) eachPlane(call string, a *Args, size uint64, f func(m *Machine, p Piece, pair, plane uint64) error) error {
	p := device.PagedArgsOf(a)
	pairs, err := m.prepare(call, p.Planes, p.NPlanes, size, p.Pairs, p.NPairs)
	if err != nil || m.Still {
		return err
	}
	return m.eachPair(p, pairs, f)
}

// eachPair is eachPlane for pairs that were already read.
func (m *Machine) eachPair(p device.PagedArgs, pairs []byte, f func(m *Machine, p Piece, pair, plane uint64) error) error {
	return m.divide(p.NPlanes*p.NPairs, p.NPairs*m.pageBytes(), func(m *Machine, from, to uint64) error {
		for i := from; i < to; i++ {
			pair, plane := i/p.NPlanes, i%p.NPlanes
			page, slot := device.ReadPair(pairs[pair*device.PairBytes:])
			if err := f(m, pieceOf(&m.planes[plane], &p, page, slot), pair, plane); err != nil {
				return fmt.Errorf("page %d, slot %d, plane %d: %w", page, slot, plane, err)
			}
		}
		return nil
	})
}

func checkDirection(call string, dir uint64) error {
	if dir != uint64(mem.ToSlots) && dir != uint64(mem.ToPages) {
		return errInvalidValue(call, fmt.Sprintf("direction=%d", dir))
	}
	return nil
}

// prepare reads the planes, with descriptors of the given size, and returns the pairs of a paged
// kernel.
func (m *Machine) prepare(call string, planes mem.DevAddr, nplanes, size uint64, at mem.DevAddr, npairs uint64) ([]byte, error) {
	if err := m.loadPlanes(call, planes, nplanes, size); err != nil {
		return nil, err
	}
	pairs, err := m.array(call, at, npairs, device.PairBytes)
	if err != nil {
		return nil, fmt.Errorf("read pairs: %w", err)
	}
	return pairs, nil
}

func pageOf(pl *device.PlaneDesc, page uint32) mem.DevAddr {
	return pl.Base + mem.DevAddr(uint64(page)*pl.Stride)
}

func pieceOf(pl *device.PlaneDesc, a *device.PagedArgs, page, slot uint32) Piece {
	p := Piece{Dst: a.Slots + mem.DevAddr(uint64(slot)*a.SlotStride+pl.SlotOff), Src: pageOf(pl, page), N: pl.Bytes}
	if a.Direction == uint64(mem.ToPages) {
		p.Dst, p.Src = p.Src, p.Dst
	}
	return p
}

// pair returns pair i/planes of a kernel with this number of planes, and its plane i%planes.
func (m *Machine) pair(pairs mem.DevAddr, planes, i uint64) (first, second uint32, pl *device.PlaneDesc) {
	b, err := m.View("simCorrupt", pairs+mem.DevAddr(i/planes*device.PairBytes), device.PairBytes)
	if err != nil || i%planes >= uint64(len(m.planes)) {
		return 0, 0, nil
	}
	first, second = device.ReadPair(b)
	return first, second, &m.planes[i%planes]
}

func pagedPiece(m *Machine, a *Args, i uint64) Piece {
	p := device.PagedArgsOf(a)
	page, slot, pl := m.pair(p.Pairs, p.NPlanes, i)
	if pl == nil {
		return Piece{}
	}
	return pieceOf(pl, &p, page, slot)
}
