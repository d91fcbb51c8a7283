package doctor

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
)

// Machine is where the answers come from. Every field is needed.
type Machine struct {
	// Files is the machine's file system from its root. Only what lies under proc and sys is read through it.
	Files fs.FS
	// CPUs is the number of processors that the process may use.
	CPUs int
	// CUDA asks the CUDA driver. Its error wraps ErrNotSupported where there is none.
	CUDA func(ctx context.Context) (CUDA, error)
	// Library loads a shared library and lets go of it again. Its error wraps ErrNotSupported where there is none.
	Library func(name string) error
	// CuFile tries cuFile on a GPU, with a file in each of dirs. It is asked only where there is a GPU and the library.
	CuFile func(ctx context.Context, dirs []string) CuFileProbe
	// IOUring asks the kernel for io_uring. Its error wraps ErrNotSupported for a definite no.
	IOUring func() error
	// OpenFiles returns the limits on descriptors; math.MaxUint64 is none.
	OpenFiles func() (soft, hard uint64, err error)
	// MemoryLock returns the limits of locked memory in bytes; math.MaxUint64 is none.
	MemoryLock func() (soft, hard uint64, err error)
	// StatFS returns the size of dir's file system and what of it this user may still fill.
	StatFS func(dir string) (total, free int64, err error)
	// DirectIO tries a write with O_DIRECT in dir and leaves nothing behind. Its error wraps ErrNotSupported where the
	// file system refuses it.
	DirectIO func(dir string) error
}

// Options says what to examine beyond the machine itself.
type Options struct {
	// Dirs are the directories whose file systems are examined. Empty: every mounted file system that keeps files.
	Dirs []string
	// Require is what the report answers in Required.
	Require []Ability
}

// Examine asks the machine everything and never fails as a whole: what could not be told is an answer too. It reads a few
// hundred small files, opens every GPU for a moment, and writes small files that are gone afterwards.
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

// text returns the trimmed contents of a file of the machine, named from its root without the leading slash.
func (m *Machine) text(name string) (string, error) {
	b, err := fs.ReadFile(m.Files, name)
	if err != nil {
		return "", fmt.Errorf("read /%s: %w", name, err)
	}
	return strings.TrimSpace(string(b)), nil
}

// textOr returns the contents of a file, or otherwise where it cannot be read: for facts that are good to have only.
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

// names lists a directory of the machine; a directory that is not there is empty.
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

// osFiles is the machine's own file system.
func osFiles() fs.FS { return os.DirFS("/") }
