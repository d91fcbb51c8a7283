package profile

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	streamfile "github.com/kvlane/kvlane/stream/file"
)

// FileSystem is what a profile of files depends on. It tells file systems apart for longer than a device number does, which a boot
// may change.
type FileSystem struct {
	Magic  int64  `json:"magic"`            // of the type, as statfs has it
	ID     string `json:"id"`               // as statfs has it; zeroes where it has none
	Type   string `json:"type,omitempty"`   // as mount calls it; empty where unknown
	Source string `json:"source,omitempty"` // what is mounted; empty where unknown
	Blocks string `json:"blocks,omitempty"` // length of the block device, in 512 bytes; empty where there is none
	Kernel string `json:"kernel"`           // its release
	// Device names the device whose memory was measured too. Empty: none.
	Device string `json:"device,omitempty"`

	dev uint64 // of the directory, now
}

// String names the file system in reports.
func (f FileSystem) String() string {
	s := fmt.Sprintf("file system %s of %s (type %#x, ID %s), kernel %s", f.Type, f.Source, f.Magic, f.ID, f.Kernel)
	if f.Device != "" {
		s += ", " + f.Device
	}
	return s
}

// hash names the profile's file. The format's version is part of it, so that builds of two versions do not fight over one.
func (f FileSystem) hash() string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s\x00%d\x00%d\x00%q\x00%q\x00%q\x00%q\x00%q\x00%q",
		filesFormat, filesVersion, f.Magic, f.ID, f.Type, f.Source, f.Blocks, f.Kernel, f.Device))
	return "files-" + hex.EncodeToString(sum[:16])
}

// fileSystemOf returns what tells a directory's file system from others.
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
	// What these two lack, the rest has to tell.
	mounts, _ := os.ReadFile("/proc/self/mountinfo")
	blocks, _ := os.ReadFile("/sys/dev/block/" + number + "/size")
	f := FileSystem{
		Magic: fs.Type, ID: fmt.Sprintf("%08x%08x", uint32(fs.Fsid.Val[0]), uint32(fs.Fsid.Val[1])),
		Blocks: strings.TrimSpace(string(blocks)), Kernel: unix.ByteSliceToString(name.Release[:]), dev: st.Dev,
	}
	// A profile is stored as JSON, which takes UTF-8 alone: the file system is compared with the
	// stored one.
	f.Type, f.Source = mounted(strings.ToValidUTF8(string(mounts), "?"), number)
	return f, nil
}

// mounted returns type and source of the file system with a device number, from the text of proc(5)'s mountinfo.
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

// deviceOf names the device whose memory is measured, with what its figures depend on.
func deviceOf(o *streamfile.Options) string {
	i := o.Device.Info()
	s := fmt.Sprintf("device %s %s %s, driver %s", i.Driver, i.Name, i.UUID, i.DriverVersion)
	if o.CuFile.Storage != nil {
		s += ", with cuFile"
	}
	return s
}
