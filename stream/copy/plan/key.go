package plan

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
)

// Key is what a profile's figures depend on. Profiles of different keys never stand in for one another.
type Key struct {
	GPU       string `json:"gpu"`        // UUID
	Driver    string `json:"driver"`     // version of the driver
	PCI       string `json:"pci"`        // address on the bus, which decides what is between GPU and memory
	LinkSpeed string `json:"link_speed"` // "32.0 GT/s", or empty where the bus does not say
	LinkWidth int    `json:"link_width"` // lanes; zero where the bus does not say
	NUMANode  int    `json:"numa_node"`  // of the GPU; -1 where unknown
	Kernels   string `json:"kernels"`    // hash of the copy kernels
	// NIC names the NICs that the profile has figures of, with what these depend on. Empty: of none.
	NIC string `json:"nic,omitempty"`
}

// String names the key in reports, without what is not known.
func (k Key) String() string {
	s := "GPU " + k.GPU
	if k.PCI != "" {
		s += " at " + k.PCI
	}
	if k.LinkWidth > 0 || k.LinkSpeed != "" {
		s += fmt.Sprintf(", PCIe %s x%d", k.LinkSpeed, k.LinkWidth)
	}
	if k.NUMANode >= 0 {
		s += fmt.Sprintf(", NUMA node %d", k.NUMANode)
	}
	s += fmt.Sprintf(", driver %s, kernels %.12s", k.Driver, k.Kernels)
	if k.NIC != "" {
		s += ", NIC " + k.NIC
	}
	return s
}

// hash names the key's file. The format's version is part of it, so that builds of two versions do not fight over one.
func (k Key) hash() string {
	all := fmt.Appendf(nil, "%d\x00%q\x00%q\x00%q\x00%q\x00%d\x00%d\x00%q",
		formatVersion, k.GPU, k.Driver, k.PCI, k.LinkSpeed, k.LinkWidth, k.NUMANode, k.Kernels)
	if k.NIC != "" {
		all = fmt.Appendf(all, "\x00%q", k.NIC)
	}
	sum := sha256.Sum256(all)
	return hex.EncodeToString(sum[:16])
}
