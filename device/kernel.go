package device

// Names of the kernels. Their arguments are the Args of Kernel, all 64-bit, addresses as the device sees them, which ListArgs and
// the others of args.go write and read; what they
// read from pinned memory has the layouts below, little-endian. Every Launcher has the first four; of the others a
// KernelLister says whether they are there, and launching one that is not is ErrNotSupported.
const (
	// KernelCopyList copies Args[1] pieces described at Args[0]: CopyDescBytes each, {u64 dst, u64 src, u64 bytes}.
	// Any alignment, any length; a piece is copied by one warp, so cut long extents into pieces (PieceBytes).
	KernelCopyList = "kvlane_copy_list"
	// KernelCopyPaged copies between pages and slots. Args: [0] planes at PlaneDescBytes each, {u64 base, u64 stride,
	// u64 bytes, u64 slotOff}; [1] number of planes; [2] pairs at 8 bytes each, {u32 page, u32 slot}; [3] number of
	// pairs; [4] device address of slot 0; [5] slot stride; [6] 1 to copy pages to slots, 2 slots to pages.
	KernelCopyPaged = "kvlane_copy_paged"
	// KernelPatternFill writes the test pattern of a paged cache: Args [0] planes, [1] number of planes, [2] pairs
	// {u32 page, u32 index}, [3] number of pairs, [4] seeds: one u64 an index. Byte o of plane p of a page is byte o%8
	// (little-endian) of Mix64(seed + (p<<40) + o/8).
	KernelPatternFill = "kvlane_pattern_fill"
	// KernelPatternCheck compares pages with that pattern; Args as PatternFill, and [5] one u64 counter an index, in
	// pinned memory, to which the number of wrong bytes is added.
	KernelPatternCheck = "kvlane_pattern_check"

	// KernelCopyListSum is KernelCopyList for leaves: every piece is LeafBytes long and aligned to LeafAlign on both
	// sides. Args[2] is an array of one u64 a piece, in pinned memory: word i becomes LeafSum of piece i's bytes as they
	// were written. A piece that is no such leaf is copied all the same, and its word is left as it was.
	KernelCopyListSum = "kvlane_copy_list_sum"
	// KernelCopyPagedSum is KernelCopyPaged for planes of whole leaves. Planes are at PlaneSumDescBytes each, those of
	// KernelCopyPaged followed by {u64 sumOff, u64 sumStride}; Args[7] is an array of u64, in pinned memory: word
	// pair*sumStride + sumOff + leaf becomes LeafSum of that leaf. With sumOff the leaves of the planes before it and
	// sumStride the leaves of all planes, the order is pair, plane, leaf, and a launch over a part of the planes or of
	// the pairs (Args[7] moved on) fills its part of the whole. A plane that is not LeafBytes times a number, or a page
	// or slot that is not aligned to LeafAlign, is copied all the same; leaves of such pages, and what is left of a
	// plane after its last whole leaf, get no sums.
	KernelCopyPagedSum = "kvlane_copy_paged_sum"

	// KernelCopyParts does what several launches of KernelCopyPaged would, one part after the other, and says of each when it
	// has landed. Args: [0] the parts at PartDescBytes each, {u64 planes, u64 nPlanes, u64 pairs, u64 nPairs, u64 slots, u64
	// slotStride, u64 sums}, what that kernel has as Args; [1] their number, MaxParts at most, with MaxPartPlanes planes in all,
	// where those of neighbours that have the same planes count once; [2] the direction; [3] zero, or
	// an array of one u64 a part and thread block of the launch (CTAs is not zero), in pinned memory: word part*CTAs + block becomes 1 when what
	// that thread block copies of the part is where it belongs. A part has landed when all its words are 1.
	KernelCopyParts = "kvlane_copy_parts"
	// KernelCopyPartsSum is the same for KernelCopyPagedSum: the sums of a part are there when it has landed.
	KernelCopyPartsSum = "kvlane_copy_parts_sum"
)

// MaxParts and MaxPartPlanes are the most parts of one launch, and the most planes.
const (
	MaxParts      = 256
	MaxPartPlanes = 512
)

// Layout of what kernels read.
const (
	CopyDescBytes     = 24
	PlaneDescBytes    = 32
	PlaneSumDescBytes = 48
	PairBytes         = 8
	PartDescBytes     = 56
	PartDoneBytes     = 8 // of a thread block and part
)

// A leaf is what a sum covers.
const (
	LeafBytes = 4096
	LeafAlign = 16
)

// PieceBytes is the longest piece that a Queue's caller should put into one descriptor of KernelCopyList.
const PieceBytes = 16 << 10

// MaxKernelArgs is the most arguments that a kernel takes.
const MaxKernelArgs = 8

// Kernel is one launch.
type Kernel struct {
	Name  string
	CTAs  int // thread blocks; zero lets the implementation choose
	Args  [MaxKernelArgs]uint64
	NArgs int
}

// KernelLister is a Launcher that knows which of the kernels named here its device has.
type KernelLister interface {
	Launcher
	// HasKernel reports whether Launch knows the kernel. Safe for concurrent use; does not block.
	HasKernel(name string) bool
}

// Mix64 is the finaliser of SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014),
// which the pattern kernels use to turn a seed and a position into bytes.
func Mix64(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9
	x = (x ^ (x >> 27)) * 0x94d049bb133111eb
	return x ^ (x >> 31)
}
