package topology

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
)

// Level is how near a NIC is to memory; less is nearer.
type Level uint8

// The levels.
const (
	LevelSwitch     Level = iota + 1 // below the same PCIe bridge or switch
	LevelHostBridge                  // below the same host bridge
	LevelNUMA                        // at the same NUMA node
	LevelSystem                      // across the links between CPUs
	LevelUnknown                     // the place of one of them is not known
)

// String returns what the level means.
func (l Level) String() string {
	switch l {
	case LevelSwitch:
		return "same PCIe switch"
	case LevelHostBridge:
		return "same host bridge"
	case LevelNUMA:
		return "same NUMA node"
	case LevelSystem:
		return "another NUMA node"
	case LevelUnknown:
		return "place unknown"
	}
	return fmt.Sprintf("level(%d)", uint8(l))
}

// MarshalText returns what String does.
func (l Level) MarshalText() ([]byte, error) { return []byte(l.String()), nil }

// Distance returns how near two devices are to each other, and over how many PCIe bridges and devices the way leads that is
// not shared; zero hops where they share none.
func Distance(a, b Place) (l Level, hops int) {
	shared := 0
	for shared < min(len(a.Bridges), len(b.Bridges)) && a.Bridges[shared] == b.Bridges[shared] {
		shared++
	}
	if shared > 0 {
		hops = len(a.Bridges) + len(b.Bridges) - 2*shared
	}
	switch {
	case shared > 1:
		return LevelSwitch, hops
	case shared == 1:
		return LevelHostBridge, hops
	case a.NUMANode >= 0 && a.NUMANode == b.NUMANode:
		return LevelNUMA, 0
	case a.NUMANode >= 0 && b.NUMANode >= 0:
		return LevelSystem, 0
	}
	return LevelUnknown, 0
}

// Candidate is a NIC as seen from a GPU, or from a NUMA node's memory.
type Candidate struct {
	Name   string `json:"name"`
	Level  Level  `json:"level"`
	Hops   int    `json:"hops,omitempty"` // of Distance
	Down   bool   `json:"-"`              // no port is active, as far as sysfs knows
	Reason string `json:"-"`              // why it ranks where it does
}

// Options say which NICs a GPU uses. The zero value asks for the nearest one.
type Options struct {
	// Named are the names of NICs by the index of the GPU, and no other is used then.
	Named [][]string
	// Count is how many NICs to use at most, of those that are equally near. Zero: one.
	Count int
	// Sysfs is where the system's device tree is. Default: DefaultSysfs.
	Sysfs string
}

// Choose returns the NICs, of those called names, that a GPU should use, the nearest first. names is what a provider has:
// rdma.Provider.Devices. Among NICs that are equally near, GPUs begin at different ones, by their index.
//
// Where NICs are named: ErrInvalid if there is no entry for the GPU, or an empty one, or a name twice; ErrNotFound, with the
// names there are, for a NIC that is not there. Otherwise ErrBroken if no NIC has an active port.
func Choose(names []string, gpu device.Info, o Options) ([]Candidate, error) {
	all, err := Rank(names, gpu, o.Sysfs)
	if err == nil {
		if o.Named != nil {
			all, err = named(all, gpu.Index, o.Named)
		} else {
			all, err = nearest(all, gpu.Index, max(o.Count, 1))
		}
	}
	if err != nil {
		return nil, fmt.Errorf("choose NIC for GPU %d: %w", gpu.Index, err)
	}
	return all, nil
}

// Rank returns all NICs, those with an active port first, then the nearest, then in the order of names.
func Rank(names []string, gpu device.Info, sysfs string) ([]Candidate, error) {
	sysfs = cmp.Or(sysfs, DefaultSysfs)
	known, err := scanNICs(sysfs)
	if err != nil {
		return nil, fmt.Errorf("look for NICs: %w", err)
	}
	at, err := placeOfGPU(sysfs, &gpu)
	if err != nil {
		return nil, err
	}
	nics := make([]NIC, len(names))
	for i, name := range names {
		nics[i] = NIC{Name: name, Place: Place{NUMANode: -1}} // it may be there all the same
		if k := slices.IndexFunc(known, func(n NIC) bool { return n.Name == name }); k >= 0 {
			nics[i] = known[k]
		}
	}
	return rank(at, nics), nil
}

// rank returns the NICs as seen from a place.
func rank(at Place, nics []NIC) []Candidate {
	all := make([]Candidate, len(nics))
	for i, n := range nics {
		c := &all[i]
		c.Name, c.Down = n.Name, n.Down
		c.Level, c.Hops = Distance(at, n.Place)
		c.Reason = c.Level.String()
		if c.Hops > 0 {
			c.Reason += fmt.Sprintf(", %d hops", c.Hops)
		}
		if c.Down {
			c.Reason += ", no active port"
		}
	}
	slices.SortStableFunc(all, func(a, b Candidate) int {
		return cmp.Or(compareBool(a.Down, b.Down), cmp.Compare(a.Level, b.Level), cmp.Compare(a.Hops, b.Hops))
	})
	return all
}

// equallyNear returns how many of the candidates are as near as the first.
func equallyNear(all []Candidate) int {
	for i, c := range all {
		if c.Level != all[0].Level || c.Hops != all[0].Hops || c.Down {
			return i
		}
	}
	return len(all)
}

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

// named returns the candidates that the configuration names for a GPU.
func named(all []Candidate, gpu int, names [][]string) ([]Candidate, error) {
	if gpu < 0 || gpu >= len(names) || len(names[gpu]) == 0 {
		return nil, fmt.Errorf("none is named: the list has %d entries: %w", len(names), errdefs.ErrInvalid)
	}
	var chosen []Candidate
	for _, name := range names[gpu] {
		if slices.ContainsFunc(chosen, func(c Candidate) bool { return c.Name == name }) {
			return nil, fmt.Errorf("NIC %q is named twice: %w", name, errdefs.ErrInvalid)
		}
		i := slices.IndexFunc(all, func(c Candidate) bool { return c.Name == name })
		if i < 0 {
			return nil, fmt.Errorf("NIC %q is not there; there are: %s: %w", name, listNames(all), errdefs.ErrNotFound)
		}
		c := all[i]
		c.Reason = "as configured; " + c.Reason
		chosen = append(chosen, c)
	}
	return chosen, nil
}

// nearest returns up to count of the candidates that are as near as the first.
func nearest(all []Candidate, gpu, count int) ([]Candidate, error) {
	if len(all) == 0 {
		return nil, fmt.Errorf("there is none: %w", errdefs.ErrNotFound)
	}
	if all[0].Down {
		return nil, fmt.Errorf("none of %s has an active port: %w", listNames(all), errdefs.ErrBroken)
	}
	best := equallyNear(all)
	var chosen []Candidate
	for i := range min(count, best) {
		c := all[(max(gpu, 0)+i)%best]
		if best > 1 {
			c.Reason += fmt.Sprintf(", one of %d equally near", best)
		}
		chosen = append(chosen, c)
	}
	return chosen, nil
}

func listNames(all []Candidate) string {
	var names []string
	for _, c := range all {
		names = append(names, c.Name)
	}
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}
