package stream

import (
	"fmt"
	"strings"

	"github.com/kvlane/kvlane/errdefs"
)

// Path is how a batch travelled.
type Path uint8

// The paths. Whoever keeps something for each of them has an array of PathCount elements.
const (
	PathNone       Path = iota // nothing moved: an empty batch, or one that failed before it started
	PathCopyEngine             // a copy engine, one copy for each run of neighbouring extents
	PathKernel                 // a kernel that reads and writes what it copies where it lies
	PathStaged                 // a copy engine over PCIe, and a kernel that gathers or scatters within device memory
	PathPosix                  // read and write system calls
	PathNIC                    // an RDMA NIC that is connected to itself
	PathNICSoft                // the same with a NIC in software: says nothing of what a NIC would do
	PathURing                  // io_uring: reads and writes of files that the kernel has queued
	PathCuFile                 // cuFile: files and device memory, with no staging memory of ours

	PathCount = iota // with PathNone
)

// Mover is what moves a path's bytes.
type Mover uint8

// The movers.
const (
	MovedByNothing Mover = iota
	MovedByDevice        // the device itself: its copy engines and kernels
	MovedByNIC           // between a device and its host
	MovedByHost          // the host, to and from files
)

// registry is the one list of paths: what they are called, and who moves their bytes.
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

// Paths returns the paths whose bytes one of the movers moves, in order; without any, all but PathNone.
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

// ParsePath reads what Path.String writes. Anything else is ErrInvalid.
func ParsePath(name string) (Path, error) {
	var names []string
	for p := range registry {
		if registry[p].name == name {
			return Path(p), nil
		}
		names = append(names, registry[p].name)
	}
	return PathNone, fmt.Errorf("there is no path %q: it is one of %s: %w", name, strings.Join(names, ", "), errdefs.ErrInvalid)
}

// MovedBy returns what moves the path's bytes.
func (p Path) MovedBy() Mover {
	if p < PathCount {
		return registry[p].by
	}
	return MovedByNothing
}

// String returns the path's name as options and reports use it.
func (p Path) String() string {
	if p < PathCount {
		return registry[p].name
	}
	return fmt.Sprintf("path(%d)", uint8(p))
}
