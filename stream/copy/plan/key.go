package plan

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
)

// Key identifies the hardware and software on which a profile depends. A profile is never used for
// another key.
type Key struct {
	GPU       string `json:"gpu"`        // UUID
	Driver    string `json:"driver"`     // version of the driver
	PCI       string `json:"pci"`        // bus address, which determines the path from GPU to memory
	LinkSpeed string `json:"link_speed"` // for example "32.0 GT/s"; empty if unknown
	LinkWidth int    `json:"link_width"` // lanes; zero if unknown
	NUMANode  int    `json:"numa_node"`  // of the GPU; -1 if unknown
	Kernels   string `json:"kernels"`    // hash of the copy kernels
	// NIC names the NICs in the profile and the properties on which their measurements depend.
	// Empty: no NIC.
	NIC string `json:"nic,omitempty"`
}

// String describes the key in reports, without unknown fields.
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

// hash returns the name of the key's file. It includes the version of the format, so that different
// builds do not overwrite each other's files.
func (k Key) hash() string {
	all := fmt.Appendf(nil, "%d\x00%q\x00%q\x00%q\x00%q\x00%d\x00%d\x00%q",
		formatVersion, k.GPU, k.Driver, k.PCI, k.LinkSpeed, k.LinkWidth, k.NUMANode, k.Kernels)
	if k.NIC != "" {
		all = fmt.Appendf(all, "\x00%q", k.NIC)
	}
	sum := sha256.Sum256(all)
	return hex.EncodeToString(sum[:16])
}
