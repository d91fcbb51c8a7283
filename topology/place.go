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

// Place is the location of a device. If it is unknown or the device is not on PCIe, all fields
// except NUMANode are zero.
type Place struct {
	// Bridges is the path from the host bridge ("pci0000:80") over PCIe bridges ("0000:80:01.0",
	// ...) to the device, inclusive. It is empty if the device is not on PCIe.
	Bridges  []string `json:"path,omitempty"`
	NUMANode int      `json:"numa_node"` // -1 if unknown
}

// PCI returns the device's address, for example "0000:81:00.0", or "".
func (p *Place) PCI() string {
	if len(p.Bridges) < 2 {
		return ""
	}
	return p.Bridges[len(p.Bridges)-1]
}

// PlaceOf returns the location of the PCI device with an address such as "0000:81:00.0". The
// address may be in upper case, and its domain may have four or eight digits. It returns
// ErrNotFound if sysfs does not list the device.
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

// normalize returns a PCI address in the format of sysfs.
func normalize(pci string) (string, error) {
	domain, rest, ok := strings.Cut(strings.ToLower(pci), ":")
	n, err := strconv.ParseUint(domain, 16, 32)
	if !ok || err != nil || rest == "" || strings.ContainsAny(rest, "/\\") {
		return "", fmt.Errorf("%q is not a PCI address: %w", pci, errdefs.ErrInvalid)
	}
	return fmt.Sprintf("%04x:%s", n, rest), nil
}

// place returns the location of the device that a link in sysfs refers to. For a missing device it
// returns the zero location.
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
	// A host bridge may be below another bus, for example in a virtual machine.
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
