package profile

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/device"
)

// FileSystem identifies a file system in a profile. The device number is not stored, because it may
// change when the machine boots.
type FileSystem struct {
	Magic  int64  `json:"magic"`            // file system type number from statfs
	ID     string `json:"id"`               // ID from statfs; zeros if the file system has none
	Type   string `json:"type,omitempty"`   // type name from mountinfo; empty if unknown
	Source string `json:"source,omitempty"` // mount source; empty if unknown
	// Blocks is the size of the block device in units of 512 bytes. Empty without a block device.
	Blocks string `json:"blocks,omitempty"`
	Kernel string `json:"kernel"` // kernel release
	// Device is the device whose memory was also measured. Empty: none.
	Device string `json:"device,omitempty"`

	dev uint64 // current device number of the directory
}

// String describes the file system for reports.
func (f FileSystem) String() string {
	s := fmt.Sprintf("file system %s of %s (type %#x, ID %s), kernel %s", f.Type, f.Source, f.Magic, f.ID, f.Kernel)
	if f.Device != "" {
		s += ", " + f.Device
	}
	return s
}

// hash returns the file name of the profile. It includes the version of the format, so that builds
// with different versions use separate files.
func (f FileSystem) hash() string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s\x00%d\x00%d\x00%q\x00%q\x00%q\x00%q\x00%q\x00%q",
		filesFormat, filesVersion, f.Magic, f.ID, f.Type, f.Source, f.Blocks, f.Kernel, f.Device))
	return "files-" + hex.EncodeToString(sum[:16])
}

// fileSystemOf returns the identity of the file system of dir.
func fileSystemOf(dir string) (FileSystem, error) {
	fail := func(call string, err error) (FileSystem, error) {
		return FileSystem{}, &os.PathError{Op: call, Path: dir, Err: err}
	}
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return fail("stat", err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return fail("open directory", unix.ENOTDIR)
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return fail("statfs", err)
	}
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return fail("uname", err)
	}
	number := fmt.Sprintf("%d:%d", unix.Major(st.Dev), unix.Minor(st.Dev))
	// Both are optional: the other fields identify the file system well enough.
	mounts, _ := os.ReadFile("/proc/self/mountinfo")
	blocks, _ := os.ReadFile("/sys/dev/block/" + number + "/size")
	f := FileSystem{
		Magic: fs.Type, ID: fmt.Sprintf("%08x%08x", uint32(fs.Fsid.Val[0]), uint32(fs.Fsid.Val[1])),
		Blocks: strings.TrimSpace(string(blocks)), Kernel: unix.ByteSliceToString(name.Release[:]), dev: st.Dev,
	}
	// JSON stores UTF-8 only, and load compares the stored identity with this one.
	f.Type, f.Source = mounted(strings.ToValidUTF8(string(mounts), "?"), number)
	return f, nil
}

// mounted returns the type and the source of the file system with a device number. mountinfo has
// the format of /proc/self/mountinfo, see proc(5).
func mounted(mountinfo, number string) (fsType, source string) {
	for line := range strings.Lines(mountinfo) {
		mount, super, ok := strings.Cut(line, " - ")
		ids, what := strings.Fields(mount), strings.Fields(super)
		if ok && len(ids) > 2 && ids[2] == number && len(what) > 1 {
			return what[0], what[1]
		}
	}
	return "", ""
}

// deviceOf describes the device and the versions that affect measurements.
func deviceOf(dev device.Device, cuFile bool) string {
	i := dev.Info()
	s := fmt.Sprintf("device %s %s %s, driver %s", i.Driver, i.Name, i.UUID, i.DriverVersion)
	if cuFile {
		s += ", with cuFile"
	}
	return s
}
