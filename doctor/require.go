package doctor

import (
	"fmt"
	"slices"
	"strings"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/stream"
)

// Ability is a feature that a deployment can require of a machine. An ability of GPUs or file
// systems is available if at least one examined GPU or file system has it.
type Ability struct {
	Name string // name for --require, such as "cuda"
	What string // short description
	ask  func(*Report) Finding
}

// abilities lists all abilities; those of devices come first.
var abilities = []Ability{
	{"cuda", "a GPU that can be opened", func(r *Report) Finding { return r.anyGPU(func(g *GPU) Finding { return g.Usable }) }},
	{"calibrated", "a GPU with a profile of its copy paths", func(r *Report) Finding { return r.anyGPU(func(g *GPU) Finding { return g.Profile }) }},
	{"copy-engine", "copies by copy engines", pathAbility(stream.PathCopyEngine.String())},
	{"kernel", "copies by kernels", pathAbility(stream.PathKernel.String())},
	{"staged", "copies through a copy engine and a kernel", pathAbility(stream.PathStaged.String())},
	{"peer", "a GPU that reaches another's memory", pathAbility("peer")},
	{"sharing", "GPU memory that other processes map", pathAbility("shared memory")},
	{"dma-buf", "GPU memory that can be exported to NICs", func(r *Report) Finding { return r.anyGPU(func(g *GPU) Finding { return g.DMABuf }) }},
	{"nic", "an RDMA NIC that copied to and from a GPU", pathAbility(stream.PathNIC.String())},
	{"rdma", "libibverbs and an RDMA device with an active port", (*Report).activePort},
	{"cufile", "cuFile, opened on a GPU", func(r *Report) Finding { return r.CuFile.Driver }},
	{"cufile-direct", "cuFile that bypasses host memory", func(r *Report) Finding { return r.CuFile.Direct }},
	{"posix", "a writable file system", pathAbility(stream.PathPosix.String())},
	{"uring", "a writable file system, and io_uring", pathAbility(stream.PathURing.String())},
	{"direct-io", "a file system with O_DIRECT", (*Report).directIO},
	{"locked-memory", "enough locked memory", func(r *Report) Finding { return r.LockedMem.Enough }},
	{"dev-shm", "/dev/shm", func(r *Report) Finding { return r.SharedMem.Usable }},
}

// Abilities returns all abilities that can be required.
func Abilities() []Ability { return slices.Clone(abilities) }

// ParseAbility returns the ability with a name. For other names, the error wraps ErrInvalid and
// lists the valid names.
func ParseAbility(name string) (Ability, error) {
	names := make([]string, len(abilities))
	for i := range abilities {
		if names[i] = abilities[i].Name; names[i] == name {
			return abilities[i], nil
		}
	}
	return Ability{}, fmt.Errorf("%w: %q is not one of %s", errdefs.ErrInvalid, name, strings.Join(names, ", "))
}

func pathAbility(name string) func(*Report) Finding {
	return func(r *Report) Finding {
		i := slices.IndexFunc(r.Paths, func(p Path) bool { return p.Name == name })
		return r.Paths[i].Available // a test checks every ability
	}
}

// activePort returns Yes if the library is installed and a port is active.
func (r *Report) activePort() Finding {
	if r.RDMA.Library.Answer != Yes {
		return r.RDMA.Library
	}
	for i := range r.RDMA.Devices {
		for _, p := range r.RDMA.Devices[i].Ports {
			if p.State == "ACTIVE" {
				return Finding{Answer: Yes, Reason: fmt.Sprintf("%s port %d", r.RDMA.Devices[i].Name, p.Number)}
			}
		}
	}
	if len(r.RDMA.Devices) == 0 {
		return Finding{Answer: No, Reason: "no RDMA device found", Remedy: "an RDMA NIC and its kernel driver"}
	}
	return Finding{Answer: No, Reason: "no port is active", Remedy: "a cable, or the link brought up (ip link, ibstat)"}
}

// directIO returns Yes if at least one file system supports O_DIRECT, otherwise the answer for the
// last one.
func (r *Report) directIO() Finding {
	last := Finding{Answer: Unknown, Reason: "no file system was examined", Remedy: "name a directory with --dir"}
	for i := range r.FileSystems {
		f := &r.FileSystems[i]
		if f.DirectIO.Answer == Yes {
			return Finding{Answer: Yes, Reason: f.Dir}
		}
		last = f.DirectIO.of(f.Dir)
	}
	return last
}

// required returns the findings of abilities.
func (r *Report) required(abilities []Ability) []Path {
	var list []Path
	for _, a := range abilities {
		list = append(list, Path{Name: a.Name, What: a.What, Available: a.ask(r)})
	}
	return list
}
