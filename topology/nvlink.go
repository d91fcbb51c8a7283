package topology

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/kvlane/kvlane/errdefs"
)

// NVLink is an NVLink connection of two GPUs.
type NVLink struct {
	A     int `json:"a"` // indexes of the GPUs in Machine.GPUs, A < B
	B     int `json:"b"`
	Links int `json:"links"` // zero if unknown
	// connected through a switch; all GPUs of the switch share these links
	Switch bool `json:"switch"`
}

// Linker finds NVLinks. *nvml.Library implements it.
type Linker interface {
	// NVLinks returns the PCI address of the other end of each active link of a GPU, or "" if the
	// address is unknown. For a GPU without NVLink it returns none or ErrNotSupported.
	NVLinks(pci string) ([]string, error)
	// Peer reports whether NVLink connects two GPUs. It returns an error if one cannot access the
	// memory of the other.
	Peer(from, to string) (nvlink bool, err error)
}

// FindNVLinks finds the NVLinks between the GPUs that the driver reports. It adds a note for each
// connection that cannot be determined.
func (m *Machine) FindNVLinks(l Linker) {
	ends := make([]map[string]int, len(m.GPUs)) // number of links of each GPU by address
	switched := make([]int, len(m.GPUs))        // links of each GPU that do not end at a GPU
	offered := m.GPUs[:m.offered()]
	for i, g := range offered {
		ends[i] = make(map[string]int)
		remotes, err := l.NVLinks(g.PCI)
		if err != nil && !errors.Is(err, errdefs.ErrNotSupported) {
			m.note(err, "the NVLinks of %s", g.title())
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
			connected, err := l.Peer(a.PCI, b.PCI)
			switch {
			case connected:
				m.NVLinks = append(m.NVLinks, NVLink{A: i, B: j, Links: min(switched[i], switched[j]), Switch: true})
			case err != nil && !errors.Is(err, errdefs.ErrNotSupported):
				m.note(err, "how %s reaches %s", a.title(), b.title())
			}
		}
	}
}

// offered returns the number of GPUs that the driver reports. They come first.
func (m *Machine) offered() int {
	if i := slices.IndexFunc(m.GPUs, func(g GPU) bool { return g.Index < 0 }); i >= 0 {
		return i
	}
	return len(m.GPUs)
}

// note adds a note about an unknown fact.
func (m *Machine) note(err error, format string, args ...any) {
	m.Notes = append(m.Notes, fmt.Sprintf(format, args...)+" is not known: "+err.Error())
}

// title returns a name for the GPU, for example "GPU 0".
func (g *GPU) title() string {
	if g.Index < 0 {
		return "GPU " + g.PCI
	}
	return fmt.Sprintf("GPU %d", g.Index)
}

// model returns the GPU's model name without the manufacturer.
func (g *GPU) model() string {
	if g.Index < 0 {
		return "not offered by the driver"
	}
	return strings.TrimPrefix(g.Name, "NVIDIA ")
}
