package dirfs_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/dirfs"
)

// limitDescriptors sets the process's limit of descriptors until the test ends.
func limitDescriptors(t *testing.T, n uint64) {
	t.Helper()
	var before unix.Rlimit
	must(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &before))
	must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: n, Max: before.Max}))
	t.Cleanup(func() { must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &before)) })
}

// openDescriptors returns the number of open descriptors of the process.
func openDescriptors(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	return len(entries)
}

// folders creates n folders with one file each.
func folders(t *testing.T, n int) (d dirfs.Dir, files []string) {
	t.Helper()
	root := t.TempDir()
	for i := range n {
		files = append(files, fmt.Sprintf("%02x/f", i))
		must(t, os.Mkdir(filepath.Join(root, filepath.Dir(files[i])), 0o700))
		must(t, os.WriteFile(filepath.Join(root, files[i]), nil, 0o600))
	}
	d, err := dirfs.OS().OpenDir(root)
	must(t, err)
	t.Cleanup(func() { must(t, d.Close()) })
	return d, files
}

func TestAllDirectoriesKeepAShareOfTheDescriptors(t *testing.T) {
	limitDescriptors(t, 400)
	a, files := folders(t, 100)
	b, _ := folders(t, 100)
	before := openDescriptors(t)
	for range 2 {
		for _, name := range files {
			for _, d := range []dirfs.Dir{a, b} {
				if _, err := d.Stat(name); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	if n := openDescriptors(t) - before; n > 50 || n < 40 {
		t.Errorf("%d folders stay open; a share of the limit is 50", n)
	}
}

// If the process has no free descriptor, kept folders are closed, also those of directories that
// are not in use.
func TestFoldersAreClosedWhereDescriptorsRunOut(t *testing.T) {
	idle, files := folders(t, 20)
	busy, _ := folders(t, 20)
	for _, name := range files {
		if _, err := idle.Stat(name); err != nil {
			t.Fatal(err)
		}
	}
	limitDescriptors(t, uint64(openDescriptors(t)+5))
	var taken []int
	defer func() {
		for _, fd := range taken {
			must(t, unix.Close(fd))
		}
	}()
	for {
		fd, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if errors.Is(err, unix.EMFILE) {
			break
		}
		must(t, err)
		taken = append(taken, fd)
	}
	var opened []dirfs.File
	for _, name := range files[:10] { // each needs a descriptor for the file, and temporarily one for its folder
		f, err := busy.Open(name, os.O_RDONLY)
		if err != nil {
			t.Fatalf("after %d files: %v", len(opened), err)
		}
		opened = append(opened, f)
	}
	for _, f := range opened {
		must(t, f.Close())
	}
}

// Folders are closed while many goroutines use others. No goroutine may get a wrong folder.
func TestFoldersInUseStayOpen(t *testing.T) {
	limitDescriptors(t, uint64(openDescriptors(t)+30))
	d, files := folders(t, 64)
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for i := range 500 {
				name := files[(i*7+g*13)%len(files)]
				f, err := d.Open(name, os.O_WRONLY|os.O_CREATE)
				if errors.Is(err, unix.EMFILE) {
					continue
				}
				if err != nil {
					t.Errorf("open %s: %v", name, err)
					return
				}
				if _, err := d.Stat(filepath.Dir(name) + "/none"); !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EMFILE) {
					t.Errorf("a file that is not there: %v", err)
				}
				if err := f.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	for _, name := range files {
		if names, err := d.ReadDir(filepath.Dir(name)); err != nil || len(names) != 1 {
			t.Errorf("%s has %q, %v", filepath.Dir(name), names, err)
		}
	}
}

// A child of fork() holds a copy of the descriptor. The test makes one with dup.
func TestLockEndsWithCloseThoughACopyIsOpen(t *testing.T) {
	d, err := dirfs.OS().OpenDir(t.TempDir())
	must(t, err)
	defer func() { must(t, d.Close()) }()
	first, err := d.Open("lock", os.O_RDWR|os.O_CREATE)
	must(t, err)
	must(t, first.Lock())
	fd := first.(dirfs.Descriptor).Descriptor() //nolint:forcetypeassert,errcheck // files of the operating system implement it
	if !listed(fd) {
		t.Errorf("descriptor %d is not in the table of locks", fd)
	}
	child, err := unix.Dup(fd)
	must(t, err)
	defer func() { must(t, unix.Close(child)) }()
	second, err := d.Open("lock", os.O_RDWR)
	must(t, err)
	if err := second.Lock(); !errors.Is(err, errdefs.ErrBusy) {
		t.Errorf("a second lock: %v", err)
	}
	must(t, first.Close())
	if listed(fd) {
		t.Errorf("descriptor %d is in the table of locks after Close", fd)
	}
	if err := second.Lock(); err != nil {
		t.Errorf("after the first was closed: %v", err)
	}
	must(t, second.Close())
}

func listed(fd int) bool {
	for i := range dirfs.Locked() {
		if dirfs.Locked()[i].Load() == int32(fd)+1 {
			return true
		}
	}
	return false
}
