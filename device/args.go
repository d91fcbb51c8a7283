package device

import (
	"encoding/binary"

	"github.com/kvlane/kvlane/mem"
)

// CopyDesc is a piece in the layout of KernelCopyList.
type CopyDesc struct {
	Dst, Src mem.DevAddr
	Bytes    uint64
}

// Put writes d to the first CopyDescBytes of b.
func (d CopyDesc) Put(b []byte) {
	_ = b[CopyDescBytes-1]
	binary.LittleEndian.PutUint64(b[0:8], uint64(d.Dst))
	binary.LittleEndian.PutUint64(b[8:16], uint64(d.Src))
	binary.LittleEndian.PutUint64(b[16:24], d.Bytes)
}

// ReadCopyDesc reads the layout of CopyDesc.Put.
func ReadCopyDesc(b []byte) CopyDesc {
	_ = b[CopyDescBytes-1]
	return CopyDesc{address(b), address(b[8:]), word(b[16:])}
}

// PlaneDesc is a plane in the layout of the paged and pattern kernels. Base is the address of page
// 0.
type PlaneDesc struct {
	Base                   mem.DevAddr
	Stride, Bytes, SlotOff uint64
}

// PlaneDescOf describes p with device addresses.
func PlaneDescOf(p *mem.Plane) PlaneDesc {
	return PlaneDesc{p.Region.Dev() + mem.DevAddr(p.Base), uint64(p.Stride), uint64(p.Bytes), uint64(p.SlotOff)}
}

// Put writes d to the first PlaneDescBytes of b.
func (d PlaneDesc) Put(b []byte) {
	_ = b[PlaneDescBytes-1]
	binary.LittleEndian.PutUint64(b[0:8], uint64(d.Base))
	binary.LittleEndian.PutUint64(b[8:16], d.Stride)
	binary.LittleEndian.PutUint64(b[16:24], d.Bytes)
	binary.LittleEndian.PutUint64(b[24:32], d.SlotOff)
}

// ReadPlaneDesc reads the layout of PlaneDesc.Put.
func ReadPlaneDesc(b []byte) PlaneDesc {
	_ = b[PlaneDescBytes-1]
	return PlaneDesc{address(b), word(b[8:]), word(b[16:]), word(b[24:])}
}

// PlaneSums is the location of a plane's sums, for kernels that compute sums: those of pair i begin
// at word i*Stride + Off. It follows the PlaneDesc.
type PlaneSums struct{ Off, Stride uint64 }

// Put writes s to b, which begins with the plane's PlaneDesc.
func (s PlaneSums) Put(b []byte) {
	_ = b[PlaneSumDescBytes-1]
	binary.LittleEndian.PutUint64(b[32:40], s.Off)
	binary.LittleEndian.PutUint64(b[40:48], s.Stride)
}

// ReadPlaneSums reads the layout of PlaneSums.Put.
func ReadPlaneSums(b []byte) PlaneSums {
	_ = b[PlaneSumDescBytes-1]
	return PlaneSums{word(b[32:]), word(b[40:])}
}

// PutPair writes a page and a slot, or for the pattern kernels a page and an index, to the first
// PairBytes of b.
func PutPair(b []byte, page, slot uint32) {
	binary.LittleEndian.PutUint64(b, uint64(slot)<<32|uint64(page))
}

// ReadPair reads the layout of PutPair.
func ReadPair(b []byte) (page, slot uint32) {
	w := word(b)
	return uint32(w), uint32(w >> 32)
}

func word(b []byte) uint64 { return binary.LittleEndian.Uint64(b) }

func address(b []byte) mem.DevAddr { return mem.DevAddr(word(b)) }

// ListArgs are the arguments of KernelCopyList and KernelCopyListSum. Sums is the address of the
// sums for KernelCopyListSum, and zero for KernelCopyList.
type ListArgs struct {
	Descs mem.DevAddr
	Count uint64
	Sums  mem.DevAddr
}

// Kernel returns a launch of the named kernel.
func (a ListArgs) Kernel(name string, ctas int) Kernel {
	return kernelOf(name, ctas, 2, a.Sums, [MaxKernelArgs]uint64{uint64(a.Descs), a.Count, uint64(a.Sums)})
}

// ListArgsOf converts the arguments of a launch.
func ListArgsOf(a *[MaxKernelArgs]uint64) ListArgs {
	return ListArgs{mem.DevAddr(a[0]), a[1], mem.DevAddr(a[2])}
}

// PagedArgs are the arguments of KernelCopyPaged and KernelCopyPagedSum. Slots is the address of
// slot 0, and Direction a mem.Direction. Sums is the address of the sums for KernelCopyPagedSum,
// and zero for KernelCopyPaged.
type PagedArgs struct {
	Planes                mem.DevAddr
	NPlanes               uint64
	Pairs                 mem.DevAddr
	NPairs                uint64
	Slots                 mem.DevAddr
	SlotStride, Direction uint64
	Sums                  mem.DevAddr
}

// Kernel returns a launch of the named kernel.
func (a PagedArgs) Kernel(name string, ctas int) Kernel {
	return kernelOf(name, ctas, 7, a.Sums, [MaxKernelArgs]uint64{
		uint64(a.Planes), a.NPlanes, uint64(a.Pairs), a.NPairs, uint64(a.Slots), a.SlotStride, a.Direction, uint64(a.Sums),
	})
}

// PagedArgsOf converts the arguments of a launch.
func PagedArgsOf(a *[MaxKernelArgs]uint64) PagedArgs {
	return PagedArgs{mem.DevAddr(a[0]), a[1], mem.DevAddr(a[2]), a[3], mem.DevAddr(a[4]), a[5], a[6], mem.DevAddr(a[7])}
}

// PartDesc is a part in the layout of KernelCopyParts: all fields of PagedArgs except the
// direction.
type PartDesc struct {
	Planes     mem.DevAddr
	NPlanes    uint64
	Pairs      mem.DevAddr
	NPairs     uint64
	Slots      mem.DevAddr
	SlotStride uint64
	Sums       mem.DevAddr
}

// Put writes d to the first PartDescBytes of b.
func (d PartDesc) Put(b []byte) {
	_ = b[PartDescBytes-1]
	for i, v := range [...]uint64{uint64(d.Planes), d.NPlanes, uint64(d.Pairs), d.NPairs, uint64(d.Slots), d.SlotStride, uint64(d.Sums)} {
		binary.LittleEndian.PutUint64(b[8*i:], v)
	}
}

// ReadPartDesc reads the layout of PartDesc.Put.
func ReadPartDesc(b []byte) PartDesc {
	_ = b[PartDescBytes-1]
	return PartDesc{address(b), word(b[8:]), address(b[16:]), word(b[24:]), address(b[32:]), word(b[40:]), address(b[48:])}
}

// PartsArgs are the arguments of KernelCopyParts and KernelCopyPartsSum. Direction is a
// mem.Direction.
type PartsArgs struct {
	Parts             mem.DevAddr
	NParts, Direction uint64
	Done              mem.DevAddr
}

// Kernel returns a launch of the named kernel.
func (a PartsArgs) Kernel(name string, ctas int) Kernel {
	return kernelOf(name, ctas, 4, 0, [MaxKernelArgs]uint64{uint64(a.Parts), a.NParts, a.Direction, uint64(a.Done)})
}

// PartsArgsOf converts the arguments of a launch.
func PartsArgsOf(a *[MaxKernelArgs]uint64) PartsArgs {
	return PartsArgs{mem.DevAddr(a[0]), a[1], a[2], mem.DevAddr(a[3])}
}

// PatternArgs are the arguments of KernelPatternFill and KernelPatternCheck. Only the latter has
// Counts.
type PatternArgs struct {
	Planes        mem.DevAddr
	NPlanes       uint64
	Pairs         mem.DevAddr
	NPairs        uint64
	Seeds, Counts mem.DevAddr
}

// Kernel returns a launch of KernelPatternCheck, or of KernelPatternFill if Counts is zero.
func (a PatternArgs) Kernel() Kernel {
	name := KernelPatternFill
	if a.Counts != 0 {
		name = KernelPatternCheck
	}
	return kernelOf(name, 0, 5, a.Counts, [MaxKernelArgs]uint64{
		uint64(a.Planes), a.NPlanes, uint64(a.Pairs), a.NPairs, uint64(a.Seeds), uint64(a.Counts),
	})
}

// PatternArgsOf converts the arguments of a launch.
func PatternArgsOf(a *[MaxKernelArgs]uint64) PatternArgs {
	return PatternArgs{mem.DevAddr(a[0]), a[1], mem.DevAddr(a[2]), a[3], mem.DevAddr(a[4]), mem.DevAddr(a[5])}
}

// kernelOf returns a launch with n arguments, or n+1 if last is not zero.
func kernelOf(name string, ctas, n int, last mem.DevAddr, args [MaxKernelArgs]uint64) Kernel {
	if last != 0 {
		n++
	}
	return Kernel{Name: name, CTAs: ctas, Args: args, NArgs: n}
}
