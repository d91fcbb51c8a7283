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

// DefaultSysfs is the root of the device tree of Linux.
const DefaultSysfs = "/sys"

// Machine has the places of memory, GPUs and RDMA NICs, and the NICs nearest to each memory.
type Machine struct {
	Nodes   []Node   `json:"numa_nodes"` // at least one
	GPUs    []GPU    `json:"gpus"`       // offered ones by index, then others on the bus
	NICs    []NIC    `json:"nics"`       // by name
	NVLinks []NVLink `json:"nvlinks"`
	Memory  []Memory `json:"memory"`
	Notes   []string `json:"notes,omitempty"` // facts that are unknown, with the reasons
}

// Node is a NUMA node.
type Node struct {
	Number      int    `json:"number"`
	CPUs        string `json:"cpus,omitempty"`         // "0-55,112-167"
	MemoryBytes int64  `json:"memory_bytes,omitempty"` // zero if unknown
}

// GPU is a GPU that the driver offers, or one of NVIDIA's on the PCI bus.
type GPU struct {
	Index int    `json:"index"` // of device.Info; -1 if the driver does not offer it
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

// Memory is the memory of a NUMA node or GPU, and the NICs that can serve it. NICs without an
// active port are left out.
type Memory struct {
	Location  string      `json:"location"`  // "cpu:0" is NUMA node 0's, "cuda:0" the first GPU's
	Preferred []Candidate `json:"preferred"` // the nearest ones, all equally near
	Available []Candidate `json:"available"` // the others, the nearest first
}

// Scan reads the machine from sysfs, such as DefaultSysfs. offered are the GPUs that the driver
// offers. A machine without a GPU or a NIC is no error.
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

// list returns the sorted names in a directory. A missing directory is empty.
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

// text returns the contents of a file of sysfs, or "" if it cannot be read.
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
		// "Node 0 MemTotal:       1056703488 kB"
		if _, after, ok := strings.Cut(text(dir, name, "meminfo"), "MemTotal:"); ok {
			kib, _ := strconv.ParseInt(strings.Fields(after + " 0")[0], 10, 64) // zero means unknown
			node.MemoryBytes = kib << 10
		}
		nodes = append(nodes, node)
	}
	if len(nodes) == 0 {
		return []Node{{}}, nil // a kernel without NUMA
	}
	slices.SortFunc(nodes, func(a, b Node) int { return cmp.Compare(a.Number, b.Number) })
	return nodes, nil
}

// scanGPUs returns the offered GPUs, then others on the bus.
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
		// NVIDIA's display controllers: data-center GPUs are 0302, 3D controllers.
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

// placeOfGPU returns the place of a GPU, from sysfs, or else from the driver.
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

// scanNICs returns the RDMA devices by name. Fields that sysfs lacks are empty: a software NIC is
// on no bus.
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

// hasActivePort reports whether a port below dir has the state "4: ACTIVE".
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
