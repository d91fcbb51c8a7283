// Package dirfstest is the conformance suite for dirfs.FS. It checks the contract of package dirfs;
// where the contract is silent, it expects the behavior of Linux. Implementations that support
// links and other special files test these themselves.
package dirfstest

import (
	"errors"
	"io/fs"
	"os"
	"testing"

	"github.com/kvlane/kvlane/internal/dirfs"
)

// Run runs the suite. open returns a file system and the path of an empty directory in it.
func Run(t *testing.T, open func(t *testing.T) (fsys dirfs.FS, root string)) {
	t.Helper()
	for name, run := range map[string]func(s *suite){
		"Contents":      testContents,
		"Flags":         testFlags,
		"BadNames":      testBadNames,
		"Folders":       testFolders,
		"OpenDir":       testOpenDir,
		"RemovedFolder": testRemovedFolder,
		"Rename":        testRename,
		"RenameRefuses": testRenameRefuses,
		"RenameNew":     testRenameNew,
		"SyncParents":   testSyncParents,
		"Unlinked":      testUnlinked,
		"SetTime":       testSetTime,
		"Sync":          testSync,
		"Lock":          testLock,
		"Concurrent":    testConcurrent,
	} {
		t.Run(name, func(t *testing.T) {
			fsys, root := open(t)
			s := &suite{T: t, fs: fsys, root: root}
			s.Dir = s.openDir(root)
			run(s)
		})
	}
}

// suite is the state of one test: a file system with an empty directory.
type suite struct {
	*testing.T
	dirfs.Dir
	fs   dirfs.FS
	root string
}

func (s *suite) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// fails checks that err wraps want and contains the path.
func (s *suite) fails(what string, err, want error) {
	s.Helper()
	if !errors.Is(err, want) {
		s.Errorf("%s: %v; want %v", what, err, want)
		return
	}
	if about := (*fs.PathError)(nil); !errors.As(err, &about) {
		s.Errorf("%s: %v does not say which path", what, err)
	}
}

// openDir opens a directory and closes it at the end of the test.
func (s *suite) openDir(path string) dirfs.Dir {
	s.Helper()
	d, err := s.fs.OpenDir(path)
	s.must(err)
	s.Cleanup(func() { s.must(d.Close()) })
	return d
}

// open opens a file and closes it at the end of the test.
func (s *suite) open(name string, flag int) dirfs.File {
	s.Helper()
	f, err := s.Open(name, flag)
	s.must(err)
	s.Cleanup(func() { s.must(f.Close()) })
	return f
}

// refuses checks that opening the file fails with want.
func (s *suite) refuses(name string, flag int, want error) {
	s.Helper()
	f, err := s.Open(name, flag)
	if err == nil {
		s.must(f.Close())
	}
	s.fails("open "+name, err, want)
}

// write creates a file with the given contents.
func (s *suite) write(name, text string) {
	s.Helper()
	f, err := s.Open(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC)
	s.must(err)
	_, err = f.WriteAt([]byte(text), 0)
	s.must(errors.Join(err, f.Close()))
}

// checkContents checks the contents of a file.
func (s *suite) checkContents(name, text string) {
	s.Helper()
	f, err := s.Open(name, os.O_RDONLY)
	s.must(err)
	s.reads(f, text)
	s.must(f.Close())
}

func (s *suite) reads(f dirfs.File, text string) {
	s.Helper()
	info, err := f.Stat()
	s.must(err)
	b := make([]byte, info.Bytes)
	n, err := f.ReadAt(b, 0)
	if err != nil || string(b[:n]) != text {
		s.Errorf("read %q, %v; want %q", b[:n], err, text)
	}
}

func (s *suite) stat(name string) dirfs.Info {
	s.Helper()
	i, err := s.Stat(name)
	s.must(err)
	return i
}
