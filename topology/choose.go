package topology

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
)

// Level is the distance class of a NIC from memory. Lower levels are nearer.
type Level uint8

// The levels.
const (
	LevelSwitch     Level = iota + 1 // below the same PCIe bridge or switch
	LevelHostBridge                  // below the same host bridge
	LevelNUMA                        // on the same NUMA node
	LevelSystem                      // on different NUMA nodes
	LevelUnknown                     // the location of one of the devices is unknown
)

// String describes the level.
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

// MarshalText returns the text of String.
func (l Level) MarshalText() ([]byte, error) { return []byte(l.String()), nil }

// Distance returns the distance of two devices: the level, and the number of PCIe bridges and
// devices on their paths that they do not share. hops is zero if they share none.
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

// Candidate is a NIC ranked by its distance from a GPU or from the memory of a NUMA node.
type Candidate struct {
	Name   string `json:"name"`
	Level  Level  `json:"level"`
	Hops   int    `json:"hops,omitempty"` // from Distance
	Down   bool   `json:"-"`              // no port is active according to sysfs
	Reason string `json:"-"`              // reason for its rank
}

// Options determine which NICs a GPU uses. The zero value selects the nearest one.
type Options struct {
	// Named lists names of NICs by the index of the GPU. If set, other NICs are not used.
	Named [][]string
	// Count is the maximum number of NICs if several are equally near. Zero means one.
	Count int
	// Sysfs is the directory of sysfs. Default: DefaultSysfs.
	Sysfs string
}

// Choose returns the NICs that a GPU should use, nearest first. names are the NICs of the provider
// (rdma.Provider.Devices). If several NICs are equally near, GPUs with different indexes begin with
// different NICs.
//
// With Options.Named it returns ErrInvalid if the GPU's list is missing, empty or has duplicates,
// and ErrNotFound with the existing names if a NIC does not exist. Without Options.Named it returns
// ErrBroken if no NIC has an active port.
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

// Rank returns all NICs: first those with an active port, then by distance, then in the order of
// names.
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
		// a NIC that sysfs does not list may still exist
		nics[i] = NIC{Name: name, Place: Place{NUMANode: -1}}
		if k := slices.IndexFunc(known, func(n NIC) bool { return n.Name == name }); k >= 0 {
			nics[i] = known[k]
		}
	}
	return rank(at, nics), nil
}

// rank returns the NICs ordered by their distance from a place.
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

// equallyNear returns the number of candidates with the same distance as the first one.
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

// named returns the candidates that the configuration lists for a GPU.
func named(all []Candidate, gpu int, names [][]string) ([]Candidate, error) {
	if gpu < 0 || gpu >= len(names) || len(names[gpu]) == 0 {
		return nil, fmt.Errorf("the list of %d entries has no name: %w", len(names), errdefs.ErrInvalid)
	}
	var chosen []Candidate
	for _, name := range names[gpu] {
		if slices.ContainsFunc(chosen, func(c Candidate) bool { return c.Name == name }) {
			return nil, fmt.Errorf("NIC %q is given twice: %w", name, errdefs.ErrInvalid)
		}
		i := slices.IndexFunc(all, func(c Candidate) bool { return c.Name == name })
		if i < 0 {
			return nil, fmt.Errorf("unknown NIC %q; this machine has %s: %w", name, listNames(all), errdefs.ErrNotFound)
		}
		c := all[i]
		c.Reason = "as configured; " + c.Reason
		chosen = append(chosen, c)
	}
	return chosen, nil
}

// nearest returns up to count candidates with the same distance as the first one.
func nearest(all []Candidate, gpu, count int) ([]Candidate, error) {
	if len(all) == 0 {
		return nil, fmt.Errorf("no NIC found: %w", errdefs.ErrNotFound)
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
