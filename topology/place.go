package topology

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/kvlane/kvlane/errdefs"
)

// Place is the place of a device. All but NUMANode is zero if the device is unknown or not on PCIe.
type Place struct {
	// Bridges is the path from the host bridge ("pci0000:80") over PCIe bridges ("0000:80:01.0",
	// ...) to the device itself. It is empty if the device is not on PCIe.
	Bridges  []string `json:"path,omitempty"`
	NUMANode int      `json:"numa_node"` // -1 if unknown
}

// PCI returns the device's address ("0000:81:00.0"), or "".
func (p *Place) PCI() string {
	if len(p.Bridges) < 2 {
		return ""
	}
	return p.Bridges[len(p.Bridges)-1]
}

// PlaceOf returns the place of the PCI device at an address such as "0000:81:00.0". The address may
// be in capitals, and its domain may have four or eight digits. If sysfs lacks the device, PlaceOf
// returns ErrNotFound.
func PlaceOf(sysfs, pci string) (Place, error) {
	address, err := normalize(pci)
	if err != nil {
		return Place{}, err
	}
	p, err := place(sysfs, filepath.Join(sysfs, "bus", "pci", "devices", address))
	if err == nil && len(p.Bridges) == 0 {
		err = fmt.Errorf("%s has no PCI device %s: %w", sysfs, address, errdefs.ErrNotFound)
	}
	return p, err
}

// normalize returns a PCI address in the form of sysfs.
func normalize(pci string) (string, error) {
	domain, rest, ok := strings.Cut(strings.ToLower(pci), ":")
	n, err := strconv.ParseUint(domain, 16, 32)
	if !ok || err != nil || rest == "" || strings.ContainsAny(rest, "/\\") {
		return "", fmt.Errorf("%q is not a PCI address: %w", pci, errdefs.ErrInvalid)
	}
	return fmt.Sprintf("%04x:%s", n, rest), nil
}

// place returns the place of the device to which a link of sysfs leads. A missing device has the
// zero place.
func place(sysfs, link string) (Place, error) {
	unknown := Place{NUMANode: -1}
	path, err := filepath.EvalSymlinks(link)
	if errors.Is(err, fs.ErrNotExist) {
		return unknown, nil
	}
	if err != nil {
		return unknown, fmt.Errorf("follow %s: %w", link, err)
	}
	root, err := filepath.EvalSymlinks(sysfs)
	if err != nil {
		return unknown, fmt.Errorf("follow %s: %w", sysfs, err)
	}
	rel, err := filepath.Rel(filepath.Join(root, "devices"), path)
	if err != nil {
		return unknown, fmt.Errorf("place %s: %w", path, err)
	}
	p := unknown
	// A host bridge may be below another bus, such as that of a virtual machine.
	parts := strings.Split(rel, string(filepath.Separator))
	if i := slices.IndexFunc(parts, func(s string) bool { return strings.HasPrefix(s, "pci") }); i >= 0 {
		p.Bridges = parts[i:]
	}
	if text, err := os.ReadFile(filepath.Join(path, "numa_node")); err == nil {
		if n, err := strconv.Atoi(strings.TrimSpace(string(text))); err == nil && n >= 0 {
			p.NUMANode = n
		}
	}
	return p, nil
}
