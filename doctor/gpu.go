package doctor

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/kvlane/kvlane/errdefs"
)

const (
	pciDevices   = "sys/bus/pci/devices"
	vendorNVIDIA = "0x10de"
	// classDisplay is PCI base class 03h, display controllers. Data-center GPUs have class 0302, 3D
	// controllers.
	classDisplay = "0x03"
)

func (m *Machine) nvidia(ctx context.Context) NVIDIA {
	n := NVIDIA{OnBus: []PCILink{}, GPUs: []GPU{}, Peers: []Peer{}, KernelModule: m.textOr("sys/module/nvidia/version", "")}
	for _, addr := range m.names(pciDevices) {
		dir := pciDevices + "/" + addr
		if m.textOr(dir+"/vendor", "") == vendorNVIDIA && strings.HasPrefix(m.textOr(dir+"/class", ""), classDisplay) {
			n.OnBus = append(n.OnBus, m.pciLink(addr))
		}
	}
	cuda, err := m.CUDA(ctx)
	if err == nil && len(cuda.Devices) == 0 {
		err = notSupported("the CUDA driver is there but offers no device")
	}
	n.Driver = Answered(err, n.driverRemedy())
	n.DriverVersion = cuda.Version
	for i := range cuda.Devices {
		n.GPUs = append(n.GPUs, m.gpu(&cuda.Devices[i]))
	}
	n.Peers = append(n.Peers, cuda.Peers...)
	return n
}

// driverRemedy returns the remedy for a missing driver. It depends on the GPUs on the bus and on
// the kernel module.
func (n *NVIDIA) driverRemedy() string {
	switch {
	case len(n.OnBus) == 0 && n.KernelModule == "":
		return "an NVIDIA GPU: this machine's PCI bus has none; --device sim simulates one"
	case n.KernelModule == "":
		return "the NVIDIA driver: a GPU is on the PCI bus, but the kernel module nvidia is not loaded"
	}
	return fmt.Sprintf("libcuda.so.1 of driver %s where the loader finds it: the kernel module is loaded. In a container, let the runtime pass the GPU in", n.KernelModule)
}

func (m *Machine) gpu(d *CUDADevice) GPU {
	i := &d.Info
	g := GPU{
		Index: i.Index, Name: i.Name, UUID: i.UUID, MemoryBytes: i.MemoryBytes, Multiprocs: i.Multiprocs, CopyEngines: i.CopyEngines,
		Compute: fmt.Sprintf("%d.%d", i.Compute[0], i.Compute[1]), NUMANode: i.NUMANode,
		PCI: PCILink{NUMANode: -1}, Usable: Answered(d.Err, ""), Probe: d.Probe, Profile: d.Profile, NIC: d.NIC, DMABuf: d.DMABuf,
		Sharing: append([]Sharing{}, d.Sharing...),
	}
	if d.Err != nil {
		// A device that could not be opened was not probed.
		f := Finding{Answer: Unknown, Reason: "the device could not be opened"}
		if errors.Is(d.Err, errdefs.ErrNotSupported) {
			f.Answer = No
		}
		g.Probe = Probe{CopyEngine: f, Batch: f, Kernel: f, Staged: f, Sums: f}
		g.Profile, g.NIC, g.DMABuf = f, f, f
	}
	if i.PCI != "" {
		g.PCI = m.pciLink(strings.ToLower(i.PCI))
		if g.NUMANode < 0 {
			g.NUMANode = g.PCI.NUMANode
		}
	}
	return g
}

func (m *Machine) pciLink(addr string) PCILink {
	dir := pciDevices + "/" + addr
	return PCILink{
		Address:  addr,
		Speed:    linkSpeed(m.textOr(dir+"/current_link_speed", "")),
		Width:    int(m.numberOr(dir+"/current_link_width", 0)),
		MaxSpeed: linkSpeed(m.textOr(dir+"/max_link_speed", "")),
		MaxWidth: int(m.numberOr(dir+"/max_link_width", 0)),
		NUMANode: int(m.numberOr(dir+"/numa_node", -1)),
	}
}

// linkSpeed removes the kernel's suffix from a rate ("32.0 GT/s PCIe"). It returns "" for
// "Unknown", the rate on the bus of a virtual machine.
func linkSpeed(s string) string {
	if strings.HasPrefix(s, "Unknown") {
		return ""
	}
	return strings.TrimSuffix(s, " PCIe")
}
