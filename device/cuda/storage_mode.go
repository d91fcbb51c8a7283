package cuda

import (
	"fmt"
	"path"
	"strings"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/internal/sys/cufile"
)

// fsTypes maps the numbers of statfs(2) to names of file systems: those that libcufile supports,
// and other common ones.
var fsTypes = map[int64]string{
	0xef53: "ext4", 0x58465342: "xfs", 0x6969: "nfs", 0x0bd00bd0: "lustre", 0x47504653: "gpfs", 0x19830326: "beegfs", 0x18031977: "wekafs",
	0x01021994: "tmpfs", 0x9123683e: "btrfs", 0x794c7630: "overlay", 0x65735546: "fuse", 0x958458f6: "hugetlbfs", 0x2fc12fc1: "zfs",
}

// statusOf is the bit in the driver's properties that is set if a network file system is supported.
var statusOf = map[string]int{
	"nfs": cufile.StatusNFS, "lustre": cufile.StatusLustre, "gpfs": cufile.StatusGPFS, "beegfs": cufile.StatusBeeGFS, "wekafs": cufile.StatusWeka,
}

// modeOf returns how a file's bytes are moved. The library does not report it: if it cannot bypass
// the host, it copies through the host and returns success. Therefore modeOf applies the library's
// own criteria: its configuration, the flags of the open file, the abilities of its kernel module,
// and the disk below the file system.
func (s *storageDriver) modeOf(f fileFacts) device.StorageMode {
	compat := func(format string, args ...any) device.StorageMode {
		return device.StorageMode{Reason: "compatibility mode: " + fmt.Sprintf(format, args...)}
	}
	disk, local := localDisk(f)
	if p2p := s.has(cufile.StatusNVMeP2P) && local && strings.HasPrefix(disk, "nvme"); !f.nvfs && s.props.Major == 0 && !p2p {
		return compat("the kernel module nvidia_fs is not loaded")
	}
	switch {
	case s.forced:
		return compat("the configuration sets force_compat_mode")
	case !f.direct:
		return compat("the file was opened without O_DIRECT")
	case local:
		return s.localMode(f, disk, compat)
	}
	bit, known := statusOf[f.fsType]
	switch {
	case !known:
		return compat("GPUDirect Storage does not support the file system %s", f.fsType)
	case !s.has(bit):
		return compat("nvidia_fs has no support for %s here", f.fsType)
	}
	return device.StorageMode{Direct: true, Reason: fmt.Sprintf("nvidia_fs %d.%d supports %s", s.props.Major, s.props.Minor, f.fsType)}
}

// localMode is modeOf for a file system on a local disk.
func (s *storageDriver) localMode(f fileFacts, disk string, compat func(string, ...any) device.StorageMode) device.StorageMode {
	switch {
	case disk == "":
		return compat("unknown disk of the file system %s", f.fsType)
	case strings.HasPrefix(disk, "nvme") && s.has(cufile.StatusNVMeP2P):
		return device.StorageMode{Direct: true, Reason: fmt.Sprintf("%s on %s, by the kernel's peer-to-peer DMA", f.fsType, disk)}
	case strings.HasPrefix(disk, "nvme") && s.has(cufile.StatusNVMe):
	case strings.HasPrefix(disk, "sd") && s.has(cufile.StatusSCSI):
	default:
		return compat("nvidia_fs cannot reach the disk %s", disk)
	}
	return device.StorageMode{Direct: true, Reason: fmt.Sprintf("nvidia_fs %d.%d, %s on %s", s.props.Major, s.props.Minor, f.fsType, disk)}
}

// localDisk returns the name of the disk below a file system, and reports whether the file system
// is on a local disk.
func localDisk(f fileFacts) (name string, local bool) {
	if f.fsType != "ext4" && f.fsType != "xfs" {
		return "", false
	}
	// "devices/pci0000:00/0000:00:04.0/nvme/nvme0/nvme0n1/nvme0n1p1"
	parent, last := path.Split(f.block)
	if disk := path.Base(parent); strings.HasPrefix(last, disk) && disk != "" {
		return disk, true // the disk of a partition
	}
	return last, true
}

func (s *storageDriver) has(bit int) bool { return s.props.Status&(1<<bit) != 0 }
