package doctor

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
)

// Machine has the sources of the answers. All fields are required.
type Machine struct {
	// Files is the machine's file system from its root. Only files in proc and sys are read.
	Files fs.FS
	// CPUs is the number of processors that the process may use.
	CPUs int
	// CUDA queries the CUDA driver. Its error wraps ErrNotSupported if there is none.
	CUDA func(ctx context.Context) (CUDA, error)
	// Library loads a shared library and releases it. Its error wraps ErrNotSupported if it is
	// missing.
	Library func(name string) error
	// CuFile tries cuFile on a GPU, with a file in each of dirs. It is called only if there are a
	// GPU and the library.
	CuFile func(ctx context.Context, dirs []string) CuFileProbe
	// IOUring probes the kernel for io_uring. Its error wraps ErrNotSupported if the answer is no.
	IOUring func() error
	// OpenFiles returns the limits on descriptors. math.MaxUint64: there is none.
	OpenFiles func() (soft, hard uint64, err error)
	// MemoryLock returns the limits on locked memory in bytes. math.MaxUint64: there is none.
	MemoryLock func() (soft, hard uint64, err error)
	// StatFS returns the bytes of dir's file system, and those still free for this user.
	StatFS func(dir string) (total, free int64, err error)
	// DirectIO tries a write with O_DIRECT in dir, and leaves no file behind. Its error wraps
	// ErrNotSupported if the file system refuses it.
	DirectIO func(dir string) error
}

// Options are the options of Examine.
type Options struct {
	// Dirs are the directories whose file systems are examined. Empty: every mounted file system
	// that keeps files.
	Dirs []string
	// Require lists the abilities that Report.Required answers for.
	Require []Ability
}

// Examine examines the machine. It always returns a report, as an inconclusive probe is an answer
// too. It reads a few hundred small files, opens every GPU for a moment, and writes small files,
// which it removes.
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

// text returns the trimmed contents of a file of the machine. name is its path without the first
// slash.
func (m *Machine) text(name string) (string, error) {
	b, err := fs.ReadFile(m.Files, name)
	if err != nil {
		return "", fmt.Errorf("read /%s: %w", name, err)
	}
	return strings.TrimSpace(string(b)), nil
}

// textOr returns the contents of a file, or otherwise if it cannot be read. It is for optional
// facts.
func (m *Machine) textOr(name, otherwise string) string {
	s, err := m.text(name)
	if err != nil {
		return otherwise
	}
	return s
}

// numberOr is textOr for a decimal number.
func (m *Machine) numberOr(name string, otherwise int64) int64 {
	n, err := strconv.ParseInt(m.textOr(name, ""), 10, 64)
	if err != nil {
		return otherwise
	}
	return n
}

// names returns the names in a directory of the machine, or none if it cannot be read.
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
