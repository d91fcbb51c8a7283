package file

import (
	"github.com/kvlane/kvlane/stream"
)

// Request is what a path is chosen by.
type Request struct {
	Dev    uint64 // the file system
	Write  bool
	Device bool  // the other end is a device's memory
	Bytes  int64 // of a transfer
	GDS    bool  // cuFile has the device reach the file system itself
}

// Choice is how a batch should travel.
type Choice struct {
	Path   stream.Path
	Depth  int // transfers at a time; zero: as many as there may be
	Reason string
}

// Profile is what was measured of files: by file system, direction, end and size class. It is plain data, written and read as
// JSON. A nil Profile has measured nothing.
type Profile struct {
	Points []Point `json:"points"`
}

// Point is what one path did.
type Point struct {
	Dev    uint64  `json:"dev"` // the file system, as stat has it
	Write  bool    `json:"write"`
	Device bool    `json:"device"`
	Bytes  int64   `json:"bytes"` // of a transfer
	Path   string  `json:"path"`
	Depth  int     `json:"depth"`
	GBps   float64 `json:"gbps"`
}

// clearly is how much faster posix must have been than other paths to be taken, and few transfers at a time than many: what is measured
// in a moment errs by less.
const clearly = 1.2

// Choose returns the fastest path for r of those that there are, as it was measured for the nearest size: posix, and fewer transfers at a
// time than DefaultTransfers, only where they were clearly faster. Where nothing was measured: cuFile where the device
// reaches the file system by it, else posix.
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
		path, _ := stream.ParsePath(best.Path) // it was read before
		return Choice{Path: path, Depth: best.Depth, Reason: ReasonMeasured}
	case r.GDS && can[stream.PathCuFile]:
		return Choice{Path: stream.PathCuFile, Reason: ReasonGDS}
	}
	return Choice{Path: stream.PathPosix, Reason: ReasonDefault}
}

// score is the rate that p is compared by.
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

// far says how many times one size is the other.
func far(a, b int64) float64 {
	a, b = max(a, 1), max(b, 1)
	return float64(max(a, b)) / float64(min(a, b))
}
