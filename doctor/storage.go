package doctor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/mem"
)

// CuFileProbe is the result of Machine.CuFile.
type CuFileProbe struct {
	// Err is nil if cuFile opened and closed. It wraps ErrNotSupported if there is no GPU, no
	// library or no support.
	Err  error
	Dirs []DirProbe // one for each directory, if cuFile opened
	// LogFile is the path of the library's log, and Log has the failures in it, the oldest first.
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
// how the bytes were moved. It removes the files.
func ProbeStorage(ctx context.Context, dev device.Device, dirs []string) CuFileProbe {
	o, ok := dev.(device.StorageOpener)
	if !ok {
		return CuFileProbe{Err: notSupported("the device knows nothing of files")}
	}
	st, err := o.OpenStorage(device.StorageOptions{})
	if err != nil {
		return CuFileProbe{Err: err}
	}
	var p CuFileProbe
	for _, dir := range dirs {
		d := DirProbe{}
		d.Mode, d.Err = tryStorage(ctx, dev, st, dir)
		d.Remedy = storageRemedy(d.Err, dir)
		p.Dirs = append(p.Dirs, d)
	}
	p.Err = st.Close()
	return p
}

func tryStorage(ctx context.Context, dev device.Device, st device.Storage, dir string) (mode device.StorageMode, err error) {
	f, err := os.CreateTemp(dir, ".kvlane-doctor-*")
	if err != nil {
		return mode, fmt.Errorf("not tried: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close(), os.Remove(f.Name())) }()
	// If the file system lacks O_DIRECT, the mode shows it.
	flags, err := unix.FcntlInt(f.Fd(), unix.F_GETFL, 0)
	if err == nil {
		_, _ = unix.FcntlInt(f.Fd(), unix.F_SETFL, flags|unix.O_DIRECT)
	}
	sf, err := st.Register(int(f.Fd()))
	if err != nil {
		return mode, err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), probeTimeout)
		defer cancel()
		err = errors.Join(err, sf.Close(ctx))
	}()
	return sf.Mode(), writeAndRead(ctx, dev, sf)
}

// writeAndRead writes a page of device memory to a file, reads it to another page, and compares
// them.
func writeAndRead(ctx context.Context, dev device.Device, sf device.StorageFile) (err error) {
	const page = device.StorageAlign
	host, err := dev.AllocHost(2 * page)
	if err != nil {
		return fmt.Errorf("allocate pinned memory: %w", err)
	}
	defer func() { err = errors.Join(err, dev.Free(host)) }()
	gpu, err := dev.Alloc(2*page, device.AllocOptions{})
	if err != nil {
		return fmt.Errorf("allocate device memory: %w", err)
	}
	defer func() { err = errors.Join(err, dev.Free(gpu)) }()
	half := func(r *mem.Region, i int64) mem.Extent { return mem.Extent{Region: r, Off: i * page, Len: page} }
	want := host.Bytes()[:page]
	for i := range want {
		want[i] = byte(device.Mix64(uint64(i)))
	}
	if err := copyNow(ctx, dev, half(gpu, 0), half(host, 0)); err != nil {
		return err
	}
	for i, move := range []func(mem.Extent, int64) (int64, error){sf.Write, sf.Read} {
		n, err := move(half(gpu, int64(i)), 0)
		if err != nil {
			return err
		}
		if n != page {
			return fmt.Errorf("%d bytes of %d were moved", n, page)
		}
	}
	if err := copyNow(ctx, dev, half(host, 1), half(gpu, 1)); err != nil {
		return err
	}
	if !bytes.Equal(want, host.Bytes()[page:]) {
		return errors.New("other bytes came back")
	}
	return nil
}

// copyNow copies by its own queue and waits.
func copyNow(ctx context.Context, dev device.Device, dst, src mem.Extent) error {
	q, err := dev.OpenQueue(device.QueueOptions{})
	if err != nil {
		return fmt.Errorf("open queue: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	return errors.Join(q.Copy(dst, src), q.Close(ctx))
}

// handleNotRegistered is CU_FILE_HANDLE_NOT_REGISTERED: cuFileHandleRegister returns it if udev has
// no record of the disk.
const handleNotRegistered = 5027

// storageRemedy returns the remedy for err in dir, or "".
func storageRemedy(err error, dir string) string {
	var e *device.Error
	if !errors.As(err, &e) || e.Code != handleNotRegistered {
		return ""
	}
	var st unix.Stat_t
	if unix.Stat(dir, &st) != nil {
		return ""
	}
	return fmt.Sprintf("a record of the disk in udev, which libcufile asks for the file system: a file /run/udev/data/b%d:%d that holds the lines "+
		"E:ID_FS_USAGE=filesystem and E:ID_FS_TYPE=ext4 (or xfs)", unix.Major(st.Dev), unix.Minor(st.Dev))
}

// cuFile tries cuFile on every writable file system of r, if there is a GPU.
func (m *Machine) cuFile(ctx context.Context, r *Report) CuFile {
	c := CuFile{Library: Answered(m.Library("libcufile.so.0"), "install GPUDirect Storage (package gds-tools or libcufile of the CUDA toolkit)")}
	switch {
	case c.Library.Answer != Yes:
		c.Driver = Finding{Answer: c.Library.Answer, Reason: "libcufile is missing", Remedy: c.Library.Remedy}
	case len(r.NVIDIA.GPUs) == 0:
		c.Driver = Finding{Answer: No, Reason: "there is no GPU to open it on", Remedy: r.NVIDIA.Driver.Remedy}
	default:
		m.tryCuFile(ctx, r, &c)
	}
	if c.Direct.Answer == "" {
		c.Direct = m.direct(&c)
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
		c.Direct = Finding{Answer: No, Reason: strings.Join(indirect, "; "), Remedy: "nvidia-fs loaded, and a file system on NVMe or one that it knows"}
	}
}

// direct returns the answer if no file was tried.
func (m *Machine) direct(c *CuFile) Finding {
	const compatibility = "libcufile then works in its compatibility mode, through host memory, and does not say so"
	switch {
	case c.Driver.Answer != Yes && c.Library.Answer != Yes:
		return c.Driver
	case m.exists("proc/driver/nvidia-fs") || m.exists("sys/module/nvidia_fs"):
		return Finding{Answer: Yes, Reason: "the kernel module nvidia_fs is loaded; whether a file system supports it shows only when a file is opened"}
	}
	return Finding{Answer: No, Reason: "the kernel module nvidia_fs is not loaded; " + compatibility, Remedy: "install nvidia-fs and modprobe nvidia_fs"}
}
