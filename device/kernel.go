package device

// Names of the kernels that every Launcher has. Their arguments are the Args of Kernel, all 64-bit, addresses as the
// device sees them; what they read from pinned memory has the layouts below, little-endian.
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
)

// Layout of what kernels read.
const (
	CopyDescBytes  = 24
	PlaneDescBytes = 32
	PairBytes      = 8
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

// Mix64 is the finaliser of SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014),
// which the pattern kernels use to turn a seed and a position into bytes.
func Mix64(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9
	x = (x ^ (x >> 27)) * 0x94d049bb133111eb
	return x ^ (x >> 31)
}
