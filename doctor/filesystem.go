package doctor

import (
	"path"
	"strconv"
	"strings"
)

// keepsFiles has the types of file systems that are suitable for a directory of blocks. Other
// mounts are the kernel's own.
var keepsFiles = map[string]bool{
	"ext2": true, "ext3": true, "ext4": true, "xfs": true, "btrfs": true, "zfs": true, "f2fs": true, "bcachefs": true, "tmpfs": true,
	"overlay": true, "nfs": true, "nfs4": true, "ceph": true, "lustre": true, "beegfs": true, "gpfs": true, "wekafs": true, "9p": true,
	"virtiofs": true, "fuse": true, "fuse.hf3fs": true, "fuse.glusterfs": true, "fuse.juicefs": true, "cifs": true, "hugetlbfs": true,
}

// mount is a line of /proc/mounts.
type mount struct {
	source, dir, fsType, options string
}

// mounts returns the machine's mount table. Of several mounts on one directory, programs see only
// the last, and so does the table.
func (m *Machine) mounts() []mount {
	var table []mount
	at := make(map[string]int)
	for line := range strings.Lines(m.textOr("proc/mounts", "")) {
		f := strings.Fields(line)
		if len(f) < 4 {
			continue
		}
		mt := mount{source: unescape(f[0]), dir: unescape(f[1]), fsType: f[2], options: f[3]}
		if i, ok := at[mt.dir]; ok {
			table[i] = mt
			continue
		}
		at[mt.dir] = len(table)
		table = append(table, mt)
	}
	return table
}

// unescape decodes the octal escapes of /proc/mounts: space, tab, newline and backslash.
func unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// mountOf returns the mount that has dir, an absolute and clean path.
func mountOf(table []mount, dir string) mount {
	var best mount
	for _, mt := range table {
		if under(dir, mt.dir) && len(mt.dir) >= len(best.dir) {
			best = mt
		}
	}
	return best
}

func under(dir, of string) bool {
	return of == "/" || dir == of || strings.HasPrefix(dir, of+"/")
}

func (m *Machine) fileSystems(dirs []string) []FileSystem {
	table := m.mounts()
	list := []FileSystem{}
	for _, dir := range dirs {
		list = append(list, m.fileSystem(mountOf(table, path.Clean(dir)), dir))
	}
	if len(dirs) > 0 {
		return list
	}
	for _, mt := range table {
		// Mounts below these are the system's own, even if their type keeps files.
		system := under(mt.dir, "/proc") || under(mt.dir, "/sys") || under(mt.dir, "/dev") || under(mt.dir, "/run")
		if keepsFiles[mt.fsType] && !system {
			list = append(list, m.fileSystem(mt, mt.dir))
		}
	}
	return list
}

func (m *Machine) fileSystem(mt mount, dir string) FileSystem {
	f := FileSystem{Dir: dir, Source: mt.source, Type: mt.fsType}
	total, free, err := m.StatFS(dir)
	if err != nil {
		f.Usable = Finding{Answer: No, Reason: err.Error()}
		f.DirectIO = Finding{Answer: Unknown, Reason: "the directory cannot be examined"}
		return f
	}
	f.TotalBytes, f.FreeBytes = total, free
	if hasOption(mt.options, "ro") {
		f.Usable = Finding{Answer: No, Reason: "it is mounted read-only", Remedy: "mount -o remount,rw " + mt.dir}
		f.DirectIO = Finding{Answer: Unknown, Reason: "trying takes a write"}
		return f
	}
	f.Usable = Finding{Answer: Yes}
	f.DirectIO = Answered(m.DirectIO(dir), "")
	return f
}

func hasOption(options, want string) bool {
	for o := range strings.SplitSeq(options, ",") {
		if o == want {
			return true
		}
	}
	return false
}

func (m *Machine) sharedMemory() FileSystem {
	const dir = "/dev/shm"
	mt := mountOf(m.mounts(), dir)
	f := m.fileSystem(mt, dir)
	if f.Usable.Answer == Yes && mt.dir != dir {
		f.Usable = Finding{Answer: No, Reason: "nothing is mounted on /dev/shm", Remedy: "mount -t tmpfs tmpfs /dev/shm, or docker run --shm-size"}
	}
	return f
}
