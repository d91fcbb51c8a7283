package doctor

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/storage"
)

// CuFileProbe is the result of Machine.CuFile.
type CuFileProbe struct {
	// Err is nil if the cuFile driver could be opened and closed. It wraps ErrNotSupported without
	// a GPU, library or support.
	Err  error
	Dirs []DirProbe // one for each directory, if the driver could be opened
	// LogFile is the path of the library's log. Log lists the failures in it, oldest first.
	LogFile string
	Log     []string
}

// DirProbe is the result for one directory.
type DirProbe struct {
	Mode   device.StorageMode
	Err    error
	Remedy string // remedy for Err, if known
}

// ProbeStorage writes a page of dev's memory to a file in each of dirs, reads it back, and reports
// how the data was transferred. It removes the files.
func ProbeStorage(ctx context.Context, dev device.Device, dirs []string) CuFileProbe {
	st, err := storage.Open(dev, device.StorageOptions{})
	if err != nil {
		return CuFileProbe{Err: err}
	}
	var p CuFileProbe
	for _, dir := range dirs {
		d := DirProbe{}
		d.Mode, d.Err = storage.Try(ctx, dev, st, dir)
		d.Remedy = storageRemedy(d.Err, dir)
		p.Dirs = append(p.Dirs, d)
	}
	p.Err = st.Close()
	return p
}

// handleNotRegistered is CU_FILE_HANDLE_NOT_REGISTERED. cuFileHandleRegister returns it if udev has
// no entry for the disk.
const handleNotRegistered = 5027

// storageRemedy returns the remedy for err in dir, or "" if none is known.
func storageRemedy(err error, dir string) string {
	var e *device.Error
	if !errors.As(err, &e) || e.Code != handleNotRegistered {
		return ""
	}
	var st unix.Stat_t
	if unix.Stat(dir, &st) != nil {
		return ""
	}
	return fmt.Sprintf("a udev record of the disk, from which libcufile reads the file system: a file /run/udev/data/b%d:%d with the lines "+
		"E:ID_FS_USAGE=filesystem and E:ID_FS_TYPE=ext4 (or xfs)", unix.Major(st.Dev), unix.Minor(st.Dev))
}

// cuFile tries cuFile on every writable file system of r. It does nothing without a GPU.
func (m *Machine) cuFile(ctx context.Context, r *Report) CuFile {
	c := CuFile{Library: Answered(m.Library("libcufile.so.0"), "install GPUDirect Storage (package gds-tools or libcufile of the CUDA toolkit)")}
	switch {
	case c.Library.Answer != Yes:
		c.Driver = Finding{Answer: c.Library.Answer, Reason: "libcufile is missing", Remedy: c.Library.Remedy}
	case len(r.NVIDIA.GPUs) == 0:
		c.Driver = Finding{Answer: No, Reason: "no GPU to open it on", Remedy: r.NVIDIA.Driver.Remedy}
	default:
		m.tryCuFile(ctx, r, &c)
	}
	if c.Direct.Answer == "" {
		c.Direct = m.direct(r, &c)
	}
	return c
}

func (m *Machine) tryCuFile(ctx context.Context, r *Report, c *CuFile) {
	var at []*FileSystem
	var dirs []string
	for i := range r.FileSystems {
		if f := &r.FileSystems[i]; f.Usable.Answer == Yes {
			at, dirs = append(at, f), append(dirs, f.Dir)
		}
	}
	p := m.CuFile(ctx, dirs)
	c.LogFile, c.Log = p.LogFile, p.Log
	c.Driver = Answered(p.Err, "the library's log")
	var indirect []string
	for i := range min(len(p.Dirs), len(at)) {
		d := &p.Dirs[i]
		f := Answered(d.Err, d.Remedy)
		if f.Answer == Yes {
			f.Reason = d.Mode.Reason
		}
		at[i].CuFile = f
		switch {
		case d.Err == nil && d.Mode.Direct:
			c.Direct = Finding{Answer: Yes, Reason: at[i].Dir + ": " + d.Mode.Reason}
		case d.Err == nil:
			indirect = append(indirect, at[i].Dir+": "+d.Mode.Reason)
		}
	}
	if c.Direct.Answer == "" && len(indirect) > 0 {
		c.Direct = Finding{Answer: No, Reason: strings.Join(indirect, "; "), Remedy: "nvidia-fs loaded, and a file system on NVMe or one supported by it"}
	}
}

// direct returns the answer about GPUDirect Storage if no file was read by cuFile.
func (m *Machine) direct(r *Report, c *CuFile) Finding {
	if c.Driver.Answer != Yes && c.Library.Answer != Yes {
		return c.Driver
	}
	const compatibility = "libcufile then uses its compatibility mode, through host memory, without an error"
	f := Finding{Answer: No, Reason: "no directory to examine"}
	for i := range r.FileSystems {
		fs := &r.FileSystems[i]
		if fs.Usable.Answer != Yes {
			continue
		}
		p := storage.Look(m.Files, path.Clean(fs.Dir))
		if p.Direct {
			return Finding{Answer: Yes, Reason: p.Reason + "; the mode shows when a file is opened"}
		}
		if f.Remedy == "" {
			f = Finding{Answer: No, Reason: p.Reason + "; " + compatibility, Remedy: p.Remedy}
		}
	}
	return f
}
