package storage_test

import (
	"strings"
	"testing"
	"testing/fstest"

	"github.com/kvlane/kvlane/device/storage"
)

func TestLookFindsWhatIsMissing(t *testing.T) {
	const table = `/dev/sda1 / ext4 rw,relatime 0 0
/dev/nvme0n1p1 /nvme ext4 rw,relatime 0 0
/dev/nvme1n1 /journal ext4 rw,data=journal 0 0
/dev/nvme2n1 /xfs xfs rw 0 0
/dev/vda1 /virtual ext4 rw 0 0
/dev/mapper/lvm /lvm ext4 rw 0 0
tmpfs /tmp tmpfs rw 0 0
server:/kv /nfs nfs4 rw 0 0
`
	module := map[string]string{"sys/module/nvidia_fs/version": "2.17"}
	p2p := map[string]string{"sys/bus/pci/devices/0000:01:00.0/p2pmem/size": "1", "sys/bus/pci/devices/0000:01:00.0/vendor": "0x10de\n"}
	otherP2P := map[string]string{"sys/bus/pci/devices/0000:01:00.0/p2pmem/size": "1", "sys/bus/pci/devices/0000:01:00.0/vendor": "0x8086\n"}
	for _, c := range []struct {
		name, dir string
		files     map[string]string
		direct    bool
		reason    string
	}{
		{"nothing", "/nvme/kv", nil, false, "nvidia_fs is not loaded"},
		{"memory of a disk", "/nvme/kv", otherP2P, false, "nvidia_fs is not loaded"},
		{"module", "/nvme/kv", module, true, "nvidia_fs is loaded, and /nvme/kv is ext4 on nvme0n1p1"},
		{"peer-to-peer", "/nvme", p2p, true, "a GPU offers peer-to-peer DMA"},
		{"xfs", "/xfs/a", module, true, "xfs on nvme2n1"},
		{"journal", "/journal", module, false, "data=journal"},
		{"scsi", "/kv", module, true, "ext4 on sda1"},
		{"scsi by peer-to-peer", "/kv", p2p, false, "the disk sda1"},
		{"virtio", "/virtual/kv", module, false, "the disk vda1"},
		{"lvm", "/lvm", module, false, "the disk lvm"},
		{"memory", "/tmp/kv", module, false, "tmpfs"},
		{"network", "/nfs/kv", module, true, "nfs4"},
		{"network by peer-to-peer", "/nfs/kv", p2p, false, "needs the kernel module"},
	} {
		machine := fstest.MapFS{"proc/mounts": {Data: []byte(table)}}
		for name, text := range c.files {
			machine[name] = &fstest.MapFile{Data: []byte(text)}
		}
		got := storage.Look(machine, c.dir)
		if got.Direct != c.direct || !strings.Contains(got.Reason, c.reason) || got.Direct != (got.Remedy == "") {
			t.Errorf("%s: %+v, want direct %t, %q", c.name, got, c.direct, c.reason)
		}
	}
	if got := storage.Look(fstest.MapFS{"sys/module/nvidia_fs/version": {}}, "/kv"); got.Direct || !strings.Contains(got.Reason, "unknown") {
		t.Errorf("without a mount table: %+v", got)
	}
}
