package calibrate

import (
	"io/fs"
	"strconv"
	"strings"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/stream/copy/plan"
)

// Key returns the key under which a profile of the device is stored. kernels identifies the code of
// the copy kernels. sysfs is the machine's /sys. If it has no entry for the link, as in many
// virtual machines, the link stays unknown.
func Key(info device.Info, kernels string, sysfs fs.FS) plan.Key {
	k := plan.Key{GPU: info.UUID, Driver: info.DriverVersion, PCI: strings.ToLower(info.PCI), NUMANode: info.NUMANode, Kernels: kernels}
	if k.GPU == "" {
		k.GPU = info.Driver + " " + info.Name
	}
	if k.PCI == "" {
		return k
	}
	read := func(name string) string {
		b, err := fs.ReadFile(sysfs, "bus/pci/devices/"+k.PCI+"/"+name)
		if err != nil {
			return ""
		}
		return strings.TrimSpace(string(b))
	}
	// The width is the one negotiated with the slot. The speed is the GPU's maximum, because the
	// current speed is lower while the GPU is idle.
	if n, err := strconv.Atoi(read("current_link_width")); err == nil {
		k.LinkWidth = n
	}
	if speed := strings.TrimSuffix(read("max_link_speed"), " PCIe"); !strings.HasPrefix(speed, "Unknown") {
		k.LinkSpeed = speed
	}
	return k
}
