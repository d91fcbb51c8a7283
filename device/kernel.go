package device

// The names of the kernels. Their arguments are Kernel.Args, all 64-bit, with device addresses.
// ListArgs and the other types of args.go encode and decode them. Data in pinned memory has the
// layouts below, little-endian. Every Launcher supports the first four kernels. A KernelLister
// reports which other kernels it supports; the launch of an unsupported kernel returns
// ErrNotSupported.
const (
	// KernelCopyList copies Args[1] pieces described at Args[0]: CopyDescBytes each, {u64 dst, u64
	// src, u64 bytes}. Pieces have any alignment and length. One warp copies a piece, so split long
	// extents into pieces of PieceBytes.
	KernelCopyList = "kvlane_copy_list"
	// KernelCopyPaged copies between pages and slots. Args: [0] planes at PlaneDescBytes each, {u64
	// base, u64 stride, u64 bytes, u64 slotOff}; [1] number of planes; [2] pairs at 8 bytes each,
	// {u32 page, u32 slot}; [3] number of pairs; [4] device address of slot 0; [5] slot stride; [6]
	// 1 to copy pages to slots, 2 slots to pages.
	KernelCopyPaged = "kvlane_copy_paged"
	// KernelPatternFill writes the test pattern of a paged cache: Args [0] planes, [1] number of
	// planes, [2] pairs {u32 page, u32 index}, [3] number of pairs, [4] seeds, one u64 per index.
	// Byte o of plane p of a page is byte o%8 (little-endian) of Mix64(seed + (p<<40) + o/8).
	KernelPatternFill = "kvlane_pattern_fill"
	// KernelPatternCheck compares pages with that pattern. Args are those of KernelPatternFill, and
	// [5] counters in pinned memory, one u64 per index. The kernel adds the number of wrong bytes
	// to them.
	KernelPatternCheck = "kvlane_pattern_check"

	// KernelCopyListSum is KernelCopyList for leaves: every piece is LeafBytes long and aligned to
	// LeafAlign on both sides. Args[2] is an array in pinned memory of one u64 per piece: word i
	// becomes LeafSum of piece i's bytes as written. A piece that is not such a leaf is copied, but
	// its word is left unchanged.
	KernelCopyListSum = "kvlane_copy_list_sum"
	// KernelCopyPagedSum is KernelCopyPaged for planes of whole leaves. Planes are at
	// PlaneSumDescBytes each: those of KernelCopyPaged followed by {u64 sumOff, u64 sumStride}.
	// Args[7] is an array of u64 in pinned memory: word pair*sumStride + sumOff + leaf becomes
	// LeafSum of that leaf. For the order pair, plane, leaf, sumOff is the number of leaves of the
	// earlier planes, and sumStride the number of leaves of all planes. A launch over some of the
	// planes or pairs, with Args[7] advanced accordingly, then fills its part of the array. A plane
	// with a length that is not a multiple of LeafBytes, or a page or slot that is not aligned to
	// LeafAlign, is copied too. Leaves of such pages, and the remainder of a plane after its last
	// whole leaf, get no sums.
	KernelCopyPagedSum = "kvlane_copy_paged_sum"

	// KernelCopyParts is equivalent to several launches of KernelCopyPaged, one part after another,
	// and reports when each part is completed. Args: [0] the parts at PartDescBytes each, {u64
	// planes, u64 nPlanes, u64 pairs, u64 nPairs, u64 slots, u64 slotStride, u64 sums}, with the
	// meaning of that kernel's Args; [1] their number, at most MaxParts, with at most MaxPartPlanes
	// planes in total, where consecutive parts with the same planes count once; [2] the direction;
	// [3] zero, or an array in pinned memory of one u64 per part and thread block of the launch
	// (CTAs is not zero). Word part*CTAs + block becomes 1 when that thread block has completed its
	// copies of the part. A part is completed when all its words are 1.
	KernelCopyParts = "kvlane_copy_parts"
	// KernelCopyPartsSum is KernelCopyParts for KernelCopyPagedSum. The sums of a part are written
	// before the part is reported as completed.
	KernelCopyPartsSum = "kvlane_copy_parts_sum"
)

// MaxParts and MaxPartPlanes limit the parts and the planes of one launch.
const (
	MaxParts      = 256
	MaxPartPlanes = 512
)

// Layout of the kernels' input.
const (
	CopyDescBytes     = 24
	PlaneDescBytes    = 32
	PlaneSumDescBytes = 48
	PairBytes         = 8
	PartDescBytes     = 56
	PartDoneBytes     = 8 // per thread block and part
)

// The size and alignment of a leaf, the range of bytes that a sum covers.
const (
	LeafBytes = 4096
	LeafAlign = 16
)

// PieceBytes is the recommended maximum length of a piece in a descriptor of KernelCopyList.
const PieceBytes = 16 << 10

// MaxKernelArgs is the maximum number of arguments of a kernel.
const MaxKernelArgs = 8

// Kernel selects a kernel and the arguments of one launch.
type Kernel struct {
	Name  string
	CTAs  int // thread blocks; zero selects the default
	Args  [MaxKernelArgs]uint64
	NArgs int
}

// KernelLister is a Launcher that reports the kernels that its device supports.
type KernelLister interface {
	Launcher
	// HasKernel reports whether Launch supports the kernel. It is safe for concurrent use and does
	// not block.
	HasKernel(name string) bool
}

// Mix64 is the finaliser of SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number
// generators", 2014). The pattern kernels use it to compute bytes from a seed and a position.
func Mix64(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9
	x = (x ^ (x >> 27)) * 0x94d049bb133111eb
	return x ^ (x >> 31)
}
