package doctor

import (
	"fmt"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/stream"
)

// paths returns the availability of each copy path, according to the findings of r.
func paths(r *Report) []Path {
	gpu := func(name stream.Path, what string, pick func(*Probe) Finding) Path {
		return Path{Name: name.String(), What: what, Available: r.anyGPU(func(g *GPU) Finding { return pick(&g.Probe) })}
	}
	return []Path{
		gpu(stream.PathCopyEngine, "host <-> GPU, one copy per contiguous run, many per call if the driver supports it", func(p *Probe) Finding { return p.CopyEngine }),
		gpu(stream.PathKernel, "host <-> GPU, scattered blocks over PCIe", func(p *Probe) Finding { return p.Kernel }),
		gpu(stream.PathStaged, "host <-> GPU, scattered blocks through a copy engine", func(p *Probe) Finding { return p.Staged }),
		{Name: "batched copies", What: "many copies of a copy engine in one call", Available: r.anyGPU(func(g *GPU) Finding { return g.Probe.Batch })},
		{Name: "checksums on the way", What: "host <-> GPU, by the kernels that copy", Available: r.anyGPU(func(g *GPU) Finding { return g.Probe.Sums })},
		{Name: stream.PathNIC.String(), What: "host <-> GPU, by an RDMA NIC connected to itself", Available: r.anyGPU(func(g *GPU) Finding {
			if g.NIC.Answer == Yes {
				return Finding{Answer: Yes} // the report prints the NIC's name with the GPU
			}
			return g.NIC
		})},
		{Name: "peer", What: "GPU <-> GPU, by copy engine or kernel", Available: r.anyPeer()},
		{Name: "shared memory", What: "GPU memory of another process, mapped", Available: r.anyGPU(func(g *GPU) Finding { return g.shares() })},
		{Name: stream.PathPosix.String(), What: "files <-> host, read and write calls", Available: r.posix()},
		{Name: stream.PathURing.String(), What: "files <-> host, many reads and writes per system call", Available: r.uring()},
		gpu(stream.PathCuFile, "files <-> GPU, without staging memory of kvlane", func(*Probe) Finding { return r.CuFile.Library }),
		{Name: "transfer/tcp", What: "between processes and hosts, over sockets", Available: Finding{Answer: Yes}},
		{Name: "transfer/rdma", What: "between processes and hosts, by an RDMA NIC", Available: r.activePort()},
		{Name: "host device", What: "the CPU and its memory, for engines on a CPU; selected by name", Available: Finding{Answer: Yes}},
		{Name: "simulated device", What: "simulates a GPU; its figures are not those of hardware", Available: Finding{Answer: Yes}},
	}
}

// anyGPU returns Yes if at least one GPU has the ability. If other GPUs lack it, the reason
// contains the number of GPUs that have it. Otherwise it returns Unknown if the answer for any GPU
// is unknown, else No. Without a GPU it returns the finding about the driver.
func (r *Report) anyGPU(pick func(*GPU) Finding) Finding {
	if len(r.NVIDIA.GPUs) == 0 {
		return r.NVIDIA.Driver
	}
	have := 0
	var missing Finding
	for i := range r.NVIDIA.GPUs {
		g := &r.NVIDIA.GPUs[i]
		f := pick(g)
		if f.Answer == Yes {
			have++
			continue
		}
		// Unknown takes precedence, because No must hold for all GPUs.
		if missing.Answer != Unknown {
			missing = f.of(fmt.Sprintf("GPU %d", g.Index))
		}
	}
	switch {
	case have == 0:
		return missing
	case have < len(r.NVIDIA.GPUs):
		return Finding{Answer: Yes, Reason: fmt.Sprintf("on %d of %d GPUs; %s", have, len(r.NVIDIA.GPUs), missing.Reason)}
	}
	return Finding{Answer: Yes}
}

// shares returns Yes if one type of handle works for the GPU's memory, otherwise the answer for the
// last type.
func (g *GPU) shares() Finding {
	best := Finding{Answer: Unknown, Reason: "not tried"}
	for _, s := range g.Sharing {
		if s.Handle == device.HandleMemFD.String() {
			continue
		}
		if best = s.Works; best.Answer == Yes {
			return Finding{Answer: Yes}
		}
	}
	return best
}

// anyPeer returns Yes if at least one GPU can access the memory of another GPU.
func (r *Report) anyPeer() Finding {
	n := &r.NVIDIA
	if len(n.GPUs) == 0 {
		return n.Driver
	}
	if len(n.GPUs) == 1 {
		return Finding{Answer: No, Reason: "this machine has one GPU", Remedy: "a second GPU"}
	}
	best := Finding{Answer: Unknown, Reason: "no pair of GPUs was examined"}
	for i := range n.Peers {
		p := &n.Peers[i]
		if p.Access.Answer == Yes {
			return Finding{Answer: Yes}
		}
		best = p.Access.of(fmt.Sprintf("GPU %d -> GPU %d", p.From, p.To))
	}
	return best
}

// uring returns Yes if io_uring is available and a file system is writable.
func (r *Report) uring() Finding {
	if r.IOUring.Answer != Yes {
		return r.IOUring
	}
	return r.posix()
}

func (r *Report) posix() Finding {
	if len(r.FileSystems) == 0 {
		return Finding{Answer: Unknown, Reason: "no file system was examined", Remedy: "name a directory with --dir"}
	}
	var reason string
	for i := range r.FileSystems {
		f := &r.FileSystems[i]
		if f.Usable.Answer == Yes {
			return Finding{Answer: Yes}
		}
		reason = fmt.Sprintf("%s: %s", f.Dir, f.Usable.Reason)
	}
	return Finding{Answer: No, Reason: reason, Remedy: "a writable directory"}
}
