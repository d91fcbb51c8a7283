package storage

import (
	"fmt"
	"io/fs"
	"path"
	"strings"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/internal/mounts"
)

// Prospect is the result of Look.
type Prospect struct {
	// Mode is the mode that files of the directory will probably have.
	device.StorageMode
	Remedy string // how to make the mode direct, or ""
}

// localTypes and networkTypes are the file systems that support GPU Direct Storage, by their names
// in the mount table.
var (
	localTypes   = map[string]bool{"ext4": true, "xfs": true}
	networkTypes = map[string]bool{"nfs": true, "nfs4": true, "lustre": true, "gpfs": true, "beegfs": true, "wekafs": true}
)

// Look reports whether files in dir, an absolute and clean path, can probably be read into GPU
// memory without passing through the host. It reads only proc and sys of the machine, and loads no
// library. The exact mode is that of an open file: see device.StorageFile.
func Look(machine fs.FS, dir string) Prospect {
	no := func(remedy, format string, args ...any) Prospect {
		return Prospect{device.StorageMode{Reason: fmt.Sprintf(format, args...)}, remedy}
	}
	module := exists(machine, "proc/driver/nvidia-fs") || exists(machine, "sys/module/nvidia_fs")
	p2p := !module && offersP2P(machine)
	if !module && !p2p {
		return no("install nvidia-fs and modprobe nvidia_fs", "the kernel module nvidia_fs is not loaded, and no GPU offers peer-to-peer DMA")
	}
	by := "nvidia_fs is loaded"
	if p2p {
		by = "a GPU offers peer-to-peer DMA"
	}
	m := mounts.Read(machine).Of(dir)
	const elsewhere = "a directory on ext4 or xfs on an NVMe disk"
	switch {
	case networkTypes[m.Type] && module:
		return Prospect{device.StorageMode{Direct: true, Reason: fmt.Sprintf("%s, and %s is %s", by, dir, m.Type)}, ""}
	case networkTypes[m.Type]:
		return no("install nvidia-fs and modprobe nvidia_fs", "%s is %s, which needs the kernel module nvidia_fs", dir, m.Type)
	case !localTypes[m.Type]:
		return no(elsewhere, "%s is %s, without GPU Direct Storage", dir, nameOf(m.Type))
	}
	for _, mode := range []string{"data=journal", "data=writeback"} {
		if m.Has(mode) {
			return no("mount "+m.Dir+" with data=ordered", "%s is mounted with %s, and GPU Direct Storage needs data=ordered", m.Dir, mode)
		}
	}
	disk := path.Base(m.Source)
	if !strings.HasPrefix(disk, "nvme") && (p2p || !strings.HasPrefix(disk, "sd")) {
		return no(elsewhere, "%s is on the disk %s, which GPU Direct Storage does not reach", dir, disk)
	}
	return Prospect{device.StorageMode{Direct: true, Reason: fmt.Sprintf("%s, and %s is %s on %s", by, dir, m.Type, disk)}, ""}
}

func nameOf(fsType string) string {
	if fsType == "" {
		return "on an unknown file system"
	}
	return fsType
}

// nvidiaVendor is NVIDIA's vendor number on the PCI bus.
const nvidiaVendor = "0x10de"

// offersP2P reports whether a GPU's driver offers GPU memory to other devices of the PCI bus.
func offersP2P(machine fs.FS) bool {
	offers, err := fs.Glob(machine, "sys/bus/pci/devices/*/p2pmem")
	if err != nil {
		return false
	}
	for _, name := range offers {
		vendor, err := fs.ReadFile(machine, path.Dir(name)+"/vendor")
		if err == nil && strings.TrimSpace(string(vendor)) == nvidiaVendor {
			return true
		}
	}
	return false
}

func exists(machine fs.FS, name string) bool {
	_, err := fs.Stat(machine, name)
	return err == nil
}
