package plan

import (
	"fmt"
	"math/bits"
	"time"

	"github.com/kvlane/kvlane/stream"
)

// Direction is the direction of a copy, seen from the device of the stream.
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

// String returns the name in profiles and reports.
func (d Direction) String() string {
	if int(d) < len(directionNames) {
		return directionNames[d]
	}
	return fmt.Sprintf("direction(%d)", uint8(d))
}

// Side is the arrangement of blocks in host memory.
type Side uint8

// The arrangements on the host side.
const (
	Contiguous Side = iota
	Scattered
	sides
)

var sideNames = [...]string{"contiguous", "scattered"}

// String returns the name in profiles and reports.
func (s Side) String() string {
	if int(s) < len(sideNames) {
		return sideNames[s]
	}
	return fmt.Sprintf("side(%d)", uint8(s))
}

// Request describes a batch for predictions.
type Request struct {
	Dir Direction
	// Pieces is the number of copies in the batch, without empty ones.
	Pieces int
	// Runs is the number of copies after merging copies that are adjacent on both sides, as a copy
	// engine does. Zero: Pieces.
	Runs int
	// HostRuns is the number of contiguous spans on the host side. Zero: Pieces. It is not used for
	// D2D and Peer.
	HostRuns int
	// HostRows is the number of spans if spans of one length at equal distances, which a copy
	// engine copies in one call, count as one. Zero: HostRuns.
	HostRows int
	// Bytes is the sum of the pieces.
	Bytes int64
	// Summed is set if the batch requests sums. Thread blocks that can just keep up with a link may
	// not do so while they compute sums. Therefore, if interference has no weight, a path uses the
	// maximum number of thread blocks.
	Summed bool
	// Awaited is mem.Batch.Awaited. If set, interference with concurrent work has no weight.
	Awaited bool
	// Unsummed holds the paths that do not compute the requested sums. A CPU then computes them in
	// a pass over the bytes. It is empty if the batch requests none.
	Unsummed Paths
	// Ahead is the predicted time until the stream has finished all accepted work; zero for an idle
	// stream. It bounds the part of a path's start-up time that can overlap.
	Ahead time.Duration
	// Alone holds the paths on which the batch would start only after all work ahead has ended, so
	// that no part of its start-up time overlaps.
	Alone Paths
}

// Paths is a set of paths.
type Paths uint32

var _ [32 - stream.PathCount]struct{} // a set holds every path

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

// With returns the union of the set and p.
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

// Choice is the selected path of a batch and its parameters.
type Choice struct {
	Path stream.Path
	// CTAs is the number of thread blocks to launch; zero for a path without them.
	CTAs int
	// ChunkBytes bounds a chunk of staging memory; zero lets the stream decide.
	ChunkBytes int64
	// Pace is the minimum time on the link that the batch should take, including waits; zero means
	// none. A stream starts the next batch or chunk no earlier than the pace permits, in proportion
	// to the bytes.
	Pace time.Duration
	// Predicted is the predicted time from the start of the batch, or from the end of the previous
	// work if that is later. It is zero if the path has no model.
	Predicted time.Duration
	// Reason is one of the Reason constants of the package.
	Reason string

	scale float64 // correction of the profile's prediction
	class batchClass
}

// The reasons of choices.
const (
	ReasonFastest      = "planned: lowest predicted time"
	ReasonLeanest      = "planned: about as fast as the fastest path, with fewer multiprocessors"
	ReasonOpposed      = "planned: fewest multiprocessors that leave the opposite direction its share of the link"
	ReasonInterference = "planned: lowest sum of time and weighted cost to other work"
	ReasonFewest       = "planned: fewest thread blocks, as every path exceeds the bound"
	ReasonUnmeasured   = "planned: no suitable path has been measured"
	ReasonOnly         = "planned: only suitable path"
	ReasonNothing      = "planned: no bytes to copy, or no suitable path"
)
