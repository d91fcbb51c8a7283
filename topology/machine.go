package topology

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
)

// DefaultSysfs is the usual directory of sysfs.
const DefaultSysfs = "/sys"

// Machine describes the locations of memory, GPUs and RDMA NICs, and the NICs nearest to each
// memory.
type Machine struct {
	Nodes   []Node   `json:"numa_nodes"` // GPUs of the driver by index, then other GPUs on the bus
	GPUs    []GPU    `json:"gpus"`       // sorted by name
	NICs    []NIC    `json:"nics"`       // by name
	NVLinks []NVLink `json:"nvlinks"`
	Memory  []Memory `json:"memory"`
	Notes   []string `json:"notes,omitempty"` // unknown facts, with the reasons
}

// Node is a NUMA node.
type Node struct {
	Number      int    `json:"number"`
	CPUs        string `json:"cpus,omitempty"`         // "0-55,112-167"
	MemoryBytes int64  `json:"memory_bytes,omitempty"` // zero if unknown
}

// GPU is a GPU that the driver reports, or another NVIDIA GPU on the PCI bus.
type GPU struct {
	Index int    `json:"index"` // device.Info.Index; -1 if the driver does not report the GPU
	Name  string `json:"name,omitempty"`
	UUID  string `json:"uuid,omitempty"`
	PCI   string `json:"pci,omitempty"`
	Place
}

// NIC is an RDMA device.
type NIC struct {
	Name string `json:"name"`
	PCI  string `json:"pci,omitempty"`
	Down bool   `json:"down,omitempty"` // no port is active
	Place
}

// Memory is the memory of a NUMA node or GPU with the NICs near it. NICs without an active port are
// omitted.
type Memory struct {
	Location  string      `json:"location"`  // "cpu:0" for NUMA node 0, "cuda:0" for GPU 0
	Preferred []Candidate `json:"preferred"` // nearest NICs, all equally near
	Available []Candidate `json:"available"` // other NICs, nearest first
}

// Scan reads the machine from sysfs, usually DefaultSysfs. offered are the GPUs that the driver
// reports. A machine need not have GPUs or NICs.
func Scan(sysfs string, offered []device.Info) (*Machine, error) {
	m := &Machine{NVLinks: []NVLink{}}
	var err error
	if m.Nodes, err = scanNodes(sysfs); err != nil {
		return nil, fmt.Errorf("look for NUMA nodes: %w", err)
	}
	if m.NICs, err = scanNICs(sysfs); err != nil {
		return nil, fmt.Errorf("look for NICs: %w", err)
	}
	if m.GPUs, err = scanGPUs(sysfs, offered); err != nil {
		return nil, fmt.Errorf("look for GPUs: %w", err)
	}
	for _, n := range m.Nodes {
		m.Memory = append(m.Memory, suited(fmt.Sprintf("cpu:%d", n.Number), Place{NUMANode: n.Number}, m.NICs))
	}
	for i, info := range offered {
		m.Memory = append(m.Memory, suited(fmt.Sprintf("%s:%d", info.Driver, info.Index), m.GPUs[i].Place, m.NICs))
	}
	return m, nil
}

func suited(location string, at Place, nics []NIC) Memory {
	all := slices.DeleteFunc(rank(at, nics), func(c Candidate) bool { return c.Down })
	n := equallyNear(all)
	return Memory{location, all[:n:n], all[n:]}
}

// list returns the sorted names in a directory. It returns none if the directory does not exist.
func list(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var all []string
	for _, e := range entries {
		all = append(all, e.Name())
	}
	return all, err
}

// text returns the contents of a file in sysfs, or "" if it cannot be read.
func text(path ...string) string {
	b, err := os.ReadFile(filepath.Join(path...))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

func scanNodes(sysfs string) ([]Node, error) {
	dir := filepath.Join(sysfs, "devices", "system", "node")
	entries, err := list(dir)
	if err != nil {
		return nil, err
	}
	var nodes []Node
	for _, name := range entries {
		number, ok := strings.CutPrefix(name, "node")
		n, err := strconv.Atoi(number)
		if !ok || err != nil {
			continue
		}
		node := Node{Number: n, CPUs: text(dir, name, "cpulist")}
		// format: "Node 0 MemTotal:       1056703488 kB"
		if _, after, ok := strings.Cut(text(dir, name, "meminfo"), "MemTotal:"); ok {
			kib, _ := strconv.ParseInt(strings.Fields(after + " 0")[0], 10, 64) // zero means unknown
			node.MemoryBytes = kib << 10
		}
		nodes = append(nodes, node)
	}
	if len(nodes) == 0 {
		return []Node{{}}, nil // the kernel has no NUMA support
	}
	slices.SortFunc(nodes, func(a, b Node) int { return cmp.Compare(a.Number, b.Number) })
	return nodes, nil
}

// scanGPUs returns the GPUs of the driver, then other GPUs on the bus.
func scanGPUs(sysfs string, offered []device.Info) ([]GPU, error) {
	gpus := []GPU{}
	for i := range offered {
		at, err := placeOfGPU(sysfs, &offered[i])
		if err != nil {
			return nil, err
		}
		gpus = append(gpus, GPU{offered[i].Index, offered[i].Name, offered[i].UUID, cmp.Or(at.PCI(), offered[i].PCI), at})
	}
	bus := filepath.Join(sysfs, "bus", "pci", "devices")
	addresses, err := list(bus)
	if err != nil {
		return nil, err
	}
	for _, pci := range addresses {
		// NVIDIA's display controllers. Data-center GPUs have class 0302, 3D controllers.
		if text(bus, pci, "vendor") != "0x10de" || !strings.HasPrefix(text(bus, pci, "class"), "0x03") ||
			slices.ContainsFunc(gpus, func(g GPU) bool { return g.PCI == pci }) {
			continue
		}
		at, err := PlaceOf(sysfs, pci)
		if err != nil {
			return nil, err
		}
		gpus = append(gpus, GPU{Index: -1, PCI: pci, Place: at})
	}
	return gpus, nil
}

// placeOfGPU returns the location of a GPU according to sysfs, or else according to the driver.
func placeOfGPU(sysfs string, gpu *device.Info) (Place, error) {
	at := Place{NUMANode: -1}
	if gpu.PCI != "" {
		var err error
		if at, err = PlaceOf(sysfs, gpu.PCI); err != nil && !errors.Is(err, errdefs.ErrNotFound) {
			return at, err
		}
	}
	if at.NUMANode < 0 {
		at.NUMANode = gpu.NUMANode
	}
	return at, nil
}

// scanNICs returns the RDMA devices sorted by name. Fields that sysfs lacks are empty; a software
// NIC is not on a bus.
func scanNICs(sysfs string) ([]NIC, error) {
	class := filepath.Join(sysfs, "class", "infiniband")
	found, err := list(class)
	if err != nil {
		return nil, err
	}
	nics := []NIC{}
	for _, name := range found {
		at, err := place(sysfs, filepath.Join(class, name, "device"))
		if err != nil {
			return nil, fmt.Errorf("NIC %s: %w", name, err)
		}
		active, err := hasActivePort(filepath.Join(class, name, "ports"))
		if err != nil {
			return nil, fmt.Errorf("NIC %s: %w", name, err)
		}
		nics = append(nics, NIC{name, at.PCI(), !active, at})
	}
	return nics, nil
}

// hasActivePort reports whether the state of a port below dir is "4: ACTIVE".
func hasActivePort(dir string) (bool, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return false, fmt.Errorf("list ports: %w", err)
	}
	for _, e := range entries {
		state, err := os.ReadFile(filepath.Join(dir, e.Name(), "state"))
		if err != nil {
			return false, fmt.Errorf("port %s: %w", e.Name(), err)
		}
		if strings.HasSuffix(strings.TrimSpace(string(state)), ": ACTIVE") {
			return true, nil
		}
	}
	return false, nil
}
