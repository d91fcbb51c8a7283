package stream

import (
	"fmt"
	"strings"

	"github.com/kvlane/kvlane/errdefs"
)

// Path is the way in which the bytes of a batch are copied.
type Path uint8

// The paths. An array indexed by Path has PathCount elements.
const (
	PathNone       Path = iota // an empty batch, or one that failed before it started
	PathCopyEngine             // a copy engine, with one copy for each run of adjacent extents
	PathKernel                 // a kernel that reads and writes the memory in place
	PathStaged                 // a copy engine, and a kernel that gathers or scatters on the device
	PathPosix                  // read and write system calls
	PathNIC                    // an RDMA NIC that is connected to itself
	PathNICSoft                // a software NIC
	PathURing                  // io_uring
	PathCuFile                 // cuFile: files and device memory, without staging memory

	PathCount = iota // including PathNone
)

// Mover is the hardware that moves the bytes of a path.
type Mover uint8

// The movers.
const (
	MovedByNothing Mover = iota
	MovedByDevice        // the device itself: its copy engines and kernels
	MovedByNIC           // between a device and its host
	MovedByHost          // the host, to and from files
)

// registry has the name and the mover of each path.
var registry = [PathCount]struct {
	name string
	by   Mover
}{
	PathNone:       {"none", MovedByNothing},
	PathCopyEngine: {"copy-engine", MovedByDevice},
	PathKernel:     {"kernel", MovedByDevice},
	PathStaged:     {"staged", MovedByDevice},
	PathPosix:      {"posix", MovedByHost},
	PathNIC:        {"nic", MovedByNIC},
	PathNICSoft:    {"nic-soft", MovedByNIC},
	PathURing:      {"uring", MovedByHost},
	PathCuFile:     {"cufile", MovedByHost},
}

// Paths returns the paths of the given movers, in order. Without arguments, it returns all paths
// except PathNone.
func Paths(by ...Mover) []Path {
	var all []Path
	for p := PathNone + 1; p < PathCount; p++ {
		want := len(by) == 0
		for _, m := range by {
			want = want || registry[p].by == m
		}
		if want {
			all = append(all, p)
		}
	}
	return all
}

// ParsePath parses a result of Path.String. It returns ErrInvalid for other names.
func ParsePath(name string) (Path, error) {
	var names []string
	for p := range registry {
		if registry[p].name == name {
			return Path(p), nil
		}
		names = append(names, registry[p].name)
	}
	return PathNone, fmt.Errorf("unknown path %q: must be one of %s: %w", name, strings.Join(names, ", "), errdefs.ErrInvalid)
}

// MovedBy returns the mover of the path.
func (p Path) MovedBy() Mover {
	if p < PathCount {
		return registry[p].by
	}
	return MovedByNothing
}

// String returns the path's name in options and reports.
func (p Path) String() string {
	if p < PathCount {
		return registry[p].name
	}
	return fmt.Sprintf("path(%d)", uint8(p))
}
