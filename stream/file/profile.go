package file

import (
	"fmt"

	"github.com/kvlane/kvlane/stream"
)

// Request holds the criteria for the choice of a path.
type Request struct {
	Dev    uint64 // identifies the file system
	Write  bool
	Device bool  // the memory is device memory
	Bytes  int64 // of a transfer
	GDS    bool  // cuFile can move directly between device and file system
}

// Choice is the path and depth for a batch.
type Choice struct {
	Path   stream.Path
	Depth  int // concurrent transfers; zero means no additional limit
	Reason string
}

// Profile holds measurements of files by file system, direction, kind of memory and size. It is
// plain data for JSON. A nil Profile has no measurements.
type Profile struct {
	Points []Point `json:"points"`
}

// Point is the measured rate of one path.
type Point struct {
	Dev    uint64  `json:"dev"` // file system, from stat
	Write  bool    `json:"write"`
	Device bool    `json:"device"`
	Bytes  int64   `json:"bytes"` // of a transfer
	Path   string  `json:"path"`
	Depth  int     `json:"depth"`
	GBps   float64 `json:"gbps"`
}

// clearly is the factor by which posix must be faster than other paths to be chosen, and a lower
// depth faster than DefaultTransfers. It exceeds the error of short measurements.
const clearly = 1.2

// Choose returns the path in can that was measured as fastest at the size nearest to r's. Posix,
// and a depth below DefaultTransfers, must be clearly faster. Without measurements it returns
// cuFile if the device can access the file system directly, and posix otherwise.
func (p *Profile) Choose(r Request, can [stream.PathCount]bool) Choice {
	var best *Point
	if p != nil {
		for i := range p.Points {
			q := &p.Points[i]
			path, err := stream.ParsePath(q.Path)
			if err != nil || !can[path] || q.Dev != r.Dev || q.Write != r.Write || q.Device != r.Device {
				continue
			}
			if best == nil || far(q.Bytes, r.Bytes) < far(best.Bytes, r.Bytes) || q.Bytes == best.Bytes && q.score() > best.score() {
				best = q
			}
		}
	}
	switch {
	case best != nil:
		path, _ := stream.ParsePath(best.Path) // parsed above without error
		return Choice{Path: path, Depth: best.Depth, Reason: ReasonMeasured}
	case r.GDS && can[stream.PathCuFile]:
		return Choice{Path: stream.PathCuFile, Reason: ReasonGDS}
	}
	return Choice{Path: stream.PathPosix, Reason: ReasonDefault}
}

// Comparison holds the measured rates, in GB/s, of reads from a file system into device memory.
type Comparison struct {
	Bytes  int64   `json:"bytes"`  // of a transfer
	Direct float64 `json:"direct"` // by cuFile
	Pinned float64 `json:"pinned"` // through pinned memory
}

// PrefersDirect reports whether cuFile was clearly faster than pinned memory: by more than 20%.
func (c Comparison) PrefersDirect() bool { return c.Direct > clearly*c.Pinned }

// String describes the rates.
func (c Comparison) String() string {
	return fmt.Sprintf("measured: cuFile reads %.2f GB/s, pinned memory %.2f GB/s", c.Direct, c.Pinned)
}

// similar is the largest ratio of two sizes whose rates are assumed to be equal.
const similar = 16

// CompareDirect compares cuFile with pinned memory for reads into device memory, at the measured
// size nearest to bytes. It returns false if one of them was not measured at a similar size.
func (p *Profile) CompareDirect(dev uint64, bytes int64) (c Comparison, measured bool) {
	for i := range p.Points {
		q := &p.Points[i]
		if q.Dev != dev || q.Write || !q.Device || far(q.Bytes, bytes) > similar || c.Bytes > 0 && far(q.Bytes, bytes) > far(c.Bytes, bytes) {
			continue
		}
		if q.Bytes != c.Bytes {
			c = Comparison{Bytes: q.Bytes}
		}
		best := &c.Pinned
		if q.Path == stream.PathCuFile.String() {
			best = &c.Direct
		}
		*best = max(*best, q.GBps)
	}
	return c, c.Direct > 0 && c.Pinned > 0
}

// score returns the rate that is compared with other paths.
func (p *Point) score() float64 {
	v := p.GBps
	if p.Path != stream.PathPosix.String() {
		v *= clearly
	}
	if p.Depth >= DefaultTransfers {
		v *= clearly
	}
	return v
}

// far returns the ratio of the larger size to the smaller.
func far(a, b int64) float64 {
	a, b = max(a, 1), max(b, 1)
	return float64(max(a, b)) / float64(min(a, b))
}
