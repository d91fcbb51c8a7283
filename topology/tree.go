package topology

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// branch is a part of a machine: a NUMA node, a host bridge, a PCIe bridge at which paths divide,
// or a device.
type branch struct {
	name  string // name in sysfs, or of the NIC
	depth int    // 1 for host bridges
	gpu   int    // index in Machine.GPUs, or -1
	nic   *NIC
	below []*branch
}

// trees returns a tree for each NUMA node, and one for devices whose node is unknown. If there is
// only one node, its tree has all devices.
func (m *Machine) trees() []*branch {
	var roots []*branch
	for _, n := range m.Nodes {
		roots = append(roots, &branch{name: n.title(), gpu: -1})
	}
	add := func(at Place, leaf *branch) {
		i := slices.IndexFunc(m.Nodes, func(n Node) bool { return n.Number == at.NUMANode || len(m.Nodes) == 1 })
		if i < 0 {
			if i = len(m.Nodes); len(roots) == i {
				roots = append(roots, &branch{name: "NUMA node unknown", gpu: -1})
			}
		}
		roots[i].add(at.Bridges, leaf)
	}
	for i := range m.GPUs {
		add(m.GPUs[i].Place, &branch{name: m.GPUs[i].title(), gpu: i})
	}
	for i := range m.NICs {
		add(m.NICs[i].Place, &branch{name: m.NICs[i].Name, gpu: -1, nic: &m.NICs[i]})
	}
	for _, r := range roots {
		r.tidy()
	}
	return roots
}

// add inserts a leaf below the branches in way.
func (b *branch) add(way []string, leaf *branch) {
	if len(way) == 0 {
		b.below = append(b.below, leaf)
		return
	}
	i := slices.IndexFunc(b.below, func(c *branch) bool { return !c.isLeaf() && c.name == way[0] })
	if i < 0 {
		i = len(b.below)
		b.below = append(b.below, &branch{name: way[0], depth: b.depth + 1, gpu: -1})
	}
	b.below[i].add(way[1:], leaf)
}

func (b *branch) isLeaf() bool { return b.gpu >= 0 || b.nic != nil }

// tidy removes bridges with only one branch below, except host bridges, and sorts the branches by
// address.
func (b *branch) tidy() {
	for i := range b.below {
		for c := b.below[i]; c.depth > 1 && len(c.below) == 1; c = c.below[0] {
			b.below[i] = c.below[0]
		}
		b.below[i].tidy()
	}
	slices.SortStableFunc(b.below, func(x, y *branch) int { return cmp.Compare(x.address(), y.address()) })
}

// address returns the sort key: the address of the first device below, or for a host bridge its
// own.
func (b *branch) address() string {
	switch {
	case b.nic != nil:
		return b.nic.PCI
	case b.isLeaf():
		return "" // GPUs first
	}
	return b.name
}

// title returns the text for the branch.
func (b *branch) title() string {
	switch b.depth {
	case 0:
		return b.name
	case 1:
		return "host bridge " + strings.TrimPrefix(b.name, "pci")
	case 2:
		return "PCIe port " + b.name
	}
	return "PCIe switch " + b.name
}

func (n *Node) title() string {
	s := fmt.Sprintf("NUMA node %d", n.Number)
	if n.CPUs != "" {
		s += ", CPUs " + n.CPUs
	}
	if n.MemoryBytes > 0 {
		s += fmt.Sprintf(", %.0f GiB", float64(n.MemoryBytes)/(1<<30))
	}
	return s
}
