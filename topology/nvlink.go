package topology

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/kvlane/kvlane/errdefs"
)

// NVLink is what joins two GPUs.
type NVLink struct {
	A      int  `json:"a"` // places of the GPUs in Machine.GPUs, A before B
	B      int  `json:"b"`
	Links  int  `json:"links"`  // zero where unknown
	Switch bool `json:"switch"` // over a switch, whose other GPUs share these links
}

// Linker knows NVLinks: NVIDIA's management library does.
type Linker interface {
	// NVLinks returns for each active link of the GPU at a PCI address the address of what is at its other end, or nothing where
	// that is not known. ErrNotSupported, or none, where the GPU has no NVLink.
	NVLinks(pci string) ([]string, error)
	// Peer says whether NVLink joins two GPUs. The error is why one does not reach the other's memory.
	Peer(from, to string) (nvlink bool, err error)
}

// FindNVLinks asks how the GPUs that the driver offers are joined: of others nobody may be told. What cannot be told is noted.
func (m *Machine) FindNVLinks(l Linker) {
	ends := make([]map[string]int, len(m.GPUs)) // how many links of a GPU lead to an address
	switched := make([]int, len(m.GPUs))        // how many lead to no GPU
	offered := m.GPUs[:m.offered()]
	for i, g := range offered {
		ends[i] = make(map[string]int)
		remotes, err := l.NVLinks(g.PCI)
		if err != nil && !errors.Is(err, errdefs.ErrNotSupported) {
			m.note(err, "what NVLinks %s has", g.title())
		}
		for _, pci := range remotes {
			ends[i][pci]++
		}
		switched[i] = len(remotes)
		for j := range m.GPUs {
			switched[i] -= ends[i][m.GPUs[j].PCI]
		}
	}
	for i, a := range offered {
		for j := i + 1; j < len(offered); j++ {
			b := offered[j]
			if n := ends[i][b.PCI]; n > 0 {
				m.NVLinks = append(m.NVLinks, NVLink{A: i, B: j, Links: n})
				continue
			}
			joined, err := l.Peer(a.PCI, b.PCI)
			switch {
			case joined:
				m.NVLinks = append(m.NVLinks, NVLink{A: i, B: j, Links: min(switched[i], switched[j]), Switch: true})
			case err != nil && !errors.Is(err, errdefs.ErrNotSupported):
				m.note(err, "how %s reaches %s", a.title(), b.title())
			}
		}
	}
}

// offered returns how many of the GPUs, which come first, the driver offers.
func (m *Machine) offered() int {
	if i := slices.IndexFunc(m.GPUs, func(g GPU) bool { return g.Index < 0 }); i >= 0 {
		return i
	}
	return len(m.GPUs)
}

// note notes what could not be told.
func (m *Machine) note(err error, format string, args ...any) {
	m.Notes = append(m.Notes, fmt.Sprintf(format, args...)+" is not known: "+err.Error())
}

// title names the GPU: "GPU 0".
func (g *GPU) title() string {
	if g.Index < 0 {
		return "GPU " + g.PCI
	}
	return fmt.Sprintf("GPU %d", g.Index)
}

// model is the GPU's name without its maker.
func (g *GPU) model() string {
	if g.Index < 0 {
		return "not offered by the driver"
	}
	return strings.TrimPrefix(g.Name, "NVIDIA ")
}
