package doctor

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
)

// Machine has the functions that examine a machine. All fields are required.
type Machine struct {
	// Files is the root of the machine's file system. Only files in proc and sys are read.
	Files fs.FS
	// CPUs is the number of processors that the process may use.
	CPUs int
	// CUDA queries the CUDA driver. Its error wraps ErrNotSupported if the driver is not installed.
	CUDA func(ctx context.Context) (CUDA, error)
	// Library loads and releases a shared library. Its error wraps ErrNotSupported if the library
	// is not installed.
	Library func(name string) error
	// CuFile tries cuFile on a GPU, with a file in each of dirs. It is called only if the machine
	// has a GPU and the library.
	CuFile func(ctx context.Context, dirs []string) CuFileProbe
	// IOUring probes io_uring. Its error wraps ErrNotSupported if io_uring cannot be used.
	IOUring func() error
	// OpenFiles returns the limits on descriptors. math.MaxUint64 means no limit.
	OpenFiles func() (soft, hard uint64, err error)
	// MemoryLock returns the limits on locked memory in bytes. math.MaxUint64 means no limit.
	MemoryLock func() (soft, hard uint64, err error)
	// StatFS returns the size of dir's file system and the free space for this user, in bytes.
	StatFS func(dir string) (total, free int64, err error)
	// DirectIO tries a write with O_DIRECT in dir and leaves no file. Its error wraps
	// ErrNotSupported if the file system does not support O_DIRECT.
	DirectIO func(dir string) error
}

// Options are the options of Examine.
type Options struct {
	// Dirs are the directories whose file systems are examined. Empty: all mounted file systems
	// that are suitable for blocks.
	Dirs []string
	// Require lists the abilities that Report.Required reports.
	Require []Ability
}

// Examine examines the machine. It always returns a report, because an inconclusive probe is also
// an answer. It reads a few hundred small files, opens every GPU, and writes and removes small
// files.
func Examine(ctx context.Context, m Machine, o Options) *Report {
	r := &Report{
		Host:      m.host(),
		NVIDIA:    m.nvidia(ctx),
		RDMA:      m.rdma(),
		IOUring:   m.ioUring(),
		HugePages: m.hugePages(),
		LockedMem: m.lockedMemory(),
		SharedMem: m.sharedMemory(),
	}
	r.FileSystems = m.fileSystems(o.Dirs)
	r.CuFile = m.cuFile(ctx, r)
	r.Paths = paths(r)
	r.Required = r.required(o.Require)
	return r
}

// text returns the trimmed contents of a file of the machine. name is its path without the leading
// slash.
func (m *Machine) text(name string) (string, error) {
	b, err := fs.ReadFile(m.Files, name)
	if err != nil {
		return "", fmt.Errorf("read /%s: %w", name, err)
	}
	return strings.TrimSpace(string(b)), nil
}

// textOr returns the contents of a file, or the value otherwise if the file cannot be read.
func (m *Machine) textOr(name, otherwise string) string {
	s, err := m.text(name)
	if err != nil {
		return otherwise
	}
	return s
}

// numberOr returns the decimal number in a file, or the value otherwise if there is none.
func (m *Machine) numberOr(name string, otherwise int64) int64 {
	n, err := strconv.ParseInt(m.textOr(name, ""), 10, 64)
	if err != nil {
		return otherwise
	}
	return n
}

// names returns the names in a directory of the machine. If the directory cannot be read, it
// returns none.
func (m *Machine) names(dir string) []string {
	entries, err := fs.ReadDir(m.Files, dir)
	if err != nil {
		return nil
	}
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	return names
}

func (m *Machine) exists(name string) bool {
	_, err := fs.Stat(m.Files, name)
	return err == nil
}

// osFiles returns the file system of this machine.
func osFiles() fs.FS { return os.DirFS("/") }
