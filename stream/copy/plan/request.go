package plan

import (
	"fmt"
	"math/bits"
	"time"

	"github.com/kvlane/kvlane/stream"
)

// Direction is which way bytes go, seen from the device of the stream.
type Direction uint8

// The directions.
const (
	H2D  Direction = iota // host to device
	D2H                   // device to host
	D2D                   // within the device, or host to host
	Peer                  // between two devices
	directions
)

var directionNames = [...]string{"h2d", "d2h", "d2d", "peer"}

// String returns the name as profiles and reports use it.
func (d Direction) String() string {
	if int(d) < len(directionNames) {
		return directionNames[d]
	}
	return fmt.Sprintf("direction(%d)", uint8(d))
}

// Side is how the host's blocks lie.
type Side uint8

// The placements on the host side.
const (
	Contiguous Side = iota
	Scattered
	sides
)

var sideNames = [...]string{"contiguous", "scattered"}

// String returns the name as profiles and reports use it.
func (s Side) String() string {
	if int(s) < len(sideNames) {
		return sideNames[s]
	}
	return fmt.Sprintf("side(%d)", uint8(s))
}

// Request is what a prediction needs to know of a batch.
type Request struct {
	Dir Direction
	// Pieces is how many copies the batch stands for, those of no bytes left out.
	Pieces int
	// Runs is how many are left when neighbours on both sides are merged: what a copy engine is asked to do. Where
	// nobody has looked (a Paged) it is Pieces.
	Runs int
	// HostRuns is how many unbroken spans the host side has: 1 where it is contiguous. Zero is taken for Pieces. For
	// D2D and Peer it has no meaning.
	HostRuns int
	// HostRows is how many of these are left where spans of one length at equal distances count as one: a copy engine takes them in one
	// call. Zero is taken for HostRuns.
	HostRows int
	// Bytes is the sum of the pieces.
	Bytes int64
	// Summed says that the batch asks for sums. Few thread blocks that keep up with a link may not while they make sums, so the most
	// that a path has are taken where harm does not count.
	Summed bool
	// Awaited is mem.Batch.Awaited: harm to what computes beside the batch has no weight.
	Awaited bool
	// Unsummed is the paths that do not make the sums that the batch asks for, so that a CPU has to, which takes the time of
	// a pass over the bytes. None where the batch asks for none.
	Unsummed Paths
	// Ahead is how long what the stream has accepted and not finished will still take, as far as predicted: zero for an
	// idle stream. It decides how much of a path's start can be hidden.
	Ahead time.Duration
	// Alone is the paths by which the batch would not start before all that is ahead has ended: nothing of their start is
	// hidden.
	Alone Paths
}

// Paths is a set of paths.
type Paths uint32

var _ [32 - stream.PathCount]struct{} // the set holds them all

// PathSet returns the set of ps.
func PathSet(ps ...stream.Path) Paths {
	var s Paths
	for _, p := range ps {
		s |= 1 << p
	}
	return s
}

// Has reports whether p is in the set.
func (s Paths) Has(p stream.Path) bool { return s>>p&1 != 0 }

// With returns the set with p in it.
func (s Paths) With(p stream.Path) Paths { return s | 1<<p }

// Without returns the set without p.
func (s Paths) Without(p stream.Path) Paths { return s &^ (1 << p) }

// All yields the paths in the set in ascending order.
func (s Paths) All(yield func(stream.Path) bool) {
	for ; s != 0; s &= s - 1 {
		if !yield(stream.Path(bits.TrailingZeros32(uint32(s)))) {
			return
		}
	}
}

// Choice is how a batch should travel.
type Choice struct {
	Path stream.Path
	// CTAs is the number of thread blocks to launch, for a path that takes any; else zero.
	CTAs int
	// ChunkBytes is how long a chunk of staging memory may be; zero: as the stream likes.
	ChunkBytes int64
	// Pace is the least time that the batch should take up of the link, waiting included; zero: none. A stream that
	// paces starts its next batch or chunk no sooner than that, in proportion to the bytes.
	Pace time.Duration
	// Predicted is what the batch will take from its start, or from the end of what was before it if that is later.
	// Zero where nothing is known of the path.
	Predicted time.Duration
	// Reason is one of the package's Reason texts.
	Reason string

	scale float64 // correction of the profile's prediction
	class batchClass
}

// The reasons of choices.
const (
	ReasonFastest    = "planned: lowest predicted time"
	ReasonLeanest    = "planned: about as fast as the fastest path, with fewer multiprocessors"
	ReasonOpposed    = "planned: fewest multiprocessors that leave the opposite direction its share of the link"
	ReasonHarm       = "planned: lowest sum of time and weighted cost to other work"
	ReasonFewest     = "planned: fewest thread blocks, as every path exceeds the bound"
	ReasonUnmeasured = "planned: no suitable path has been measured"
	ReasonOnly       = "planned: only suitable path"
	ReasonNothing    = "planned: nothing to copy, or no path to copy it"
)
