package doctor

import (
	"path"

	"github.com/kvlane/kvlane/internal/mounts"
)

// keepsFiles lists the types of file systems that are suitable for a directory of blocks. File
// systems of other types belong to the kernel.
var keepsFiles = map[string]bool{
	"ext2": true, "ext3": true, "ext4": true, "xfs": true, "btrfs": true, "zfs": true, "f2fs": true, "bcachefs": true, "tmpfs": true,
	"overlay": true, "nfs": true, "nfs4": true, "ceph": true, "lustre": true, "beegfs": true, "gpfs": true, "wekafs": true, "9p": true,
	"virtiofs": true, "fuse": true, "fuse.hf3fs": true, "fuse.glusterfs": true, "fuse.juicefs": true, "cifs": true, "hugetlbfs": true,
}

func (m *Machine) fileSystems(dirs []string) []FileSystem {
	table := mounts.Read(m.Files)
	list := []FileSystem{}
	for _, dir := range dirs {
		list = append(list, m.fileSystem(table.Of(path.Clean(dir)), dir))
	}
	if len(dirs) > 0 {
		return list
	}
	for _, mt := range table {
		// Mounts below these directories belong to the system, even if their type is suitable.
		system := mounts.Under(mt.Dir, "/proc") || mounts.Under(mt.Dir, "/sys") || mounts.Under(mt.Dir, "/dev") || mounts.Under(mt.Dir, "/run")
		if keepsFiles[mt.Type] && !system {
			list = append(list, m.fileSystem(mt, mt.Dir))
		}
	}
	return list
}

func (m *Machine) fileSystem(mt mounts.Mount, dir string) FileSystem {
	f := FileSystem{Dir: dir, Source: mt.Source, Type: mt.Type}
	total, free, err := m.StatFS(dir)
	if err != nil {
		f.Usable = Finding{Answer: No, Reason: err.Error()}
		f.DirectIO = Finding{Answer: Unknown, Reason: "the directory cannot be examined"}
		return f
	}
	f.TotalBytes, f.FreeBytes = total, free
	if mt.Has("ro") {
		f.Usable = Finding{Answer: No, Reason: "it is mounted read-only", Remedy: "mount -o remount,rw " + mt.Dir}
		f.DirectIO = Finding{Answer: Unknown, Reason: "the test needs a write"}
		return f
	}
	f.Usable = Finding{Answer: Yes}
	f.DirectIO = Answered(m.DirectIO(dir), "")
	return f
}

func (m *Machine) sharedMemory() FileSystem {
	const dir = "/dev/shm"
	mt := mounts.Read(m.Files).Of(dir)
	f := m.fileSystem(mt, dir)
	if f.Usable.Answer == Yes && mt.Dir != dir {
		f.Usable = Finding{Answer: No, Reason: "no file system is mounted on /dev/shm", Remedy: "mount -t tmpfs tmpfs /dev/shm, or docker run --shm-size"}
	}
	return f
}
