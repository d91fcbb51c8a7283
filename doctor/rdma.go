package doctor

import (
	"strconv"
	"strings"

	"github.com/kvlane/kvlane/rdma"
)

const infiniband = "sys/class/infiniband"

// nullGID is the value of unused entries in a port's GID table.
const nullGID = "0000:0000:0000:0000:0000:0000:0000:0000"

func (m *Machine) rdma() RDMA {
	r := RDMA{
		Library: Answered(m.Library("libibverbs.so.1"), rdma.InstallVerbs),
		Devices: []RDMADevice{},
	}
	for _, name := range m.names(infiniband) {
		r.Devices = append(r.Devices, m.rdmaDevice(name))
	}
	if m.exists("sys/module/nvidia_peermem") {
		r.PeerMemory = Finding{Answer: Yes}
	} else {
		r.PeerMemory = Finding{Answer: No, Reason: "the kernel module nvidia_peermem is not loaded", Remedy: "modprobe nvidia_peermem, or a driver and NIC that use dma-buf"}
	}
	return r
}

func (m *Machine) rdmaDevice(name string) RDMADevice {
	dir := infiniband + "/" + name
	d := RDMADevice{
		Name:     name,
		Firmware: m.textOr(dir+"/fw_ver", ""),
		NUMANode: int(m.numberOr(dir+"/device/numa_node", -1)),
		Ports:    []RDMAPort{},
	}
	for _, port := range m.names(dir + "/ports") {
		n, err := strconv.Atoi(port)
		if err != nil {
			continue
		}
		d.Ports = append(d.Ports, m.rdmaPort(dir+"/ports/"+port, n))
	}
	return d
}

func (m *Machine) rdmaPort(dir string, number int) RDMAPort {
	p := RDMAPort{
		Number:    number,
		State:     "unknown",
		LinkLayer: m.textOr(dir+"/link_layer", "unknown"),
		Rate:      m.textOr(dir+"/rate", ""),
		GIDs:      []GID{},
	}
	// format: "4: ACTIVE"
	if _, state, ok := strings.Cut(m.textOr(dir+"/state", ""), ": "); ok {
		p.State = state
	}
	for _, name := range m.names(dir + "/gids") {
		i, err := strconv.Atoi(name)
		gid := m.textOr(dir+"/gids/"+name, nullGID)
		if err != nil || gid == nullGID {
			continue
		}
		p.GIDs = append(p.GIDs, GID{Index: i, GID: gid, Type: m.textOr(dir+"/gid_attrs/types/"+name, "")})
	}
	return p
}
