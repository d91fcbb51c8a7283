package dirfs_test

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/dirfs"
	"github.com/kvlane/kvlane/internal/dirfs/dirfstest"
	"github.com/kvlane/kvlane/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// tree returns a directory with links and other files that an attacker may plant, and a victim file
// outside of it.
func tree(t *testing.T) (d dirfs.Dir, root, victim string) {
	t.Helper()
	root, outside := t.TempDir(), t.TempDir()
	victim = filepath.Join(outside, "victim")
	must(t, os.WriteFile(victim, []byte("precious"), 0o600))
	must(t, os.Mkdir(filepath.Join(root, "folder"), 0o700))
	must(t, os.Symlink(victim, filepath.Join(root, "link")))
	must(t, os.Symlink(outside, filepath.Join(root, "linked")))
	must(t, os.Symlink("folder", filepath.Join(root, "inner")))
	must(t, unix.Mkfifo(filepath.Join(root, "fifo"), 0o600))
	must(t, unix.Mknod(filepath.Join(root, "socket"), unix.S_IFSOCK|0o600, 0))
	d, err := dirfs.OS().OpenDir(root)
	must(t, err)
	t.Cleanup(func() { must(t, d.Close()) })
	return d, root, victim
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestWritebackIsStarted(t *testing.T) {
	d, err := dirfs.OS().OpenDir(t.TempDir())
	must(t, err)
	defer func() { must(t, d.Close()) }()
	f, err := d.Open("f", os.O_RDWR|os.O_CREATE)
	must(t, err)
	_, err = f.WriteAt(make([]byte, 1<<20), 0)
	must(t, err)
	w := f.(dirfs.WritebackStarter) //nolint:forcetypeassert,errcheck // files of the operating system implement it
	must(t, w.StartWriteback(0, 1<<20))
	must(t, w.StartWriteback(0, 2<<20)) // bytes that were not written are ignored
	must(t, f.Sync())
	if err := w.StartWriteback(-1, 1); !errors.Is(err, unix.EINVAL) || !strings.Contains(err.Error(), "start writeback") {
		t.Errorf("before the start: %v", err)
	}
	must(t, f.Close())
}

func TestNothingButRegularFilesIsOpened(t *testing.T) {
	d, _, _ := tree(t)
	for _, name := range []string{"link", "fifo", "socket", "folder", "linked", "inner", "."} {
		for _, flag := range []int{os.O_RDONLY, os.O_RDWR, os.O_WRONLY | os.O_CREATE} {
			done := make(chan error, 1)
			go func() {
				_, err := d.Open(name, flag)
				done <- err
			}()
			select {
			case err := <-done:
				if !errors.Is(err, dirfs.ErrIrregular) {
					t.Errorf("open %s with flags %#x: %v", name, flag, err)
				}
			case <-time.After(testkit.Patience()):
				t.Fatalf("open %s with flags %#x hangs", name, flag)
			}
		}
	}
	if _, err := d.Open("link", os.O_WRONLY|os.O_CREATE|os.O_EXCL); !errors.Is(err, fs.ErrExist) {
		t.Errorf("create over a link: %v", err)
	}
}

func TestNoPartOfANameMayBeALink(t *testing.T) {
	d, _, victim := tree(t)
	must(t, make1(d, "mine"))
	for name, do := range map[string]func(name string) error{
		"open":        func(n string) error { _, err := d.Open(n, os.O_RDONLY); return err },
		"create":      func(n string) error { _, err := d.Open(n+"2", os.O_RDWR|os.O_CREATE); return err },
		"stat":        func(n string) error { _, err := d.Stat(n); return err },
		"mkdir":       func(n string) error { return d.Mkdir(n + "2") },
		"rename from": func(n string) error { return d.Rename(n, "stolen", true) },
		"rename to":   func(n string) error { return d.Rename("mine", n, true) },
		"remove":      d.Remove,
		"settime":     func(n string) error { return d.SetTime(n, time.Unix(1, 0)) },
		"readdir":     func(n string) error { _, err := d.ReadDir(n[:strings.LastIndexByte(n, '/')+1] + "."); return err },
	} {
		for _, n := range []string{"linked/victim", "inner/victim", "linked/../victim", "../victim", "/etc/passwd", "./link/x"} {
			if err := do(n); err == nil {
				t.Errorf("%s %q succeeded", name, n)
			}
		}
	}
	b, err := os.ReadFile(victim)
	if err != nil || string(b) != "precious" {
		t.Errorf("the link's target: %q, %v", b, err)
	}
	if i, err := d.Stat("link"); err != nil || i.Type != fs.ModeSymlink || i.Regular() {
		t.Errorf("stat of a link: %+v, %v", i, err)
	}
	must(t, d.SetTime("link", time.Unix(5, 0)))
	must(t, d.Remove("link"))
	must(t, d.Rename("linked", "mine", true))
	if i, err := os.Stat(victim); err != nil || i.ModTime().Unix() == 5 {
		t.Errorf("the target after its link was removed: %v, %v", i, err)
	}
}

func make1(d dirfs.Dir, name string) error {
	f, err := d.Open(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL)
	if err != nil {
		return err
	}
	return f.Close()
}

func TestConformance(t *testing.T) {
	dirfstest.Run(t, func(t *testing.T) (dirfs.FS, string) { return dirfs.OS(), t.TempDir() })
}

func TestRemoveAnythingButAFullFolder(t *testing.T) {
	d, _, _ := tree(t)
	for _, name := range []string{"link", "linked", "inner", "fifo", "socket", "folder"} {
		must(t, d.Remove(name))
	}
	if names, err := d.ReadDir("."); err != nil || len(names) != 0 {
		t.Errorf("names left in the directory: %q, %v", names, err)
	}
}

// A folder that is removed and recreated is found, although the old folder was kept open.
func TestFolderMadeAnewIsFound(t *testing.T) {
	root := t.TempDir()
	d, err := dirfs.OS().OpenDir(root)
	must(t, err)
	defer func() { must(t, d.Close()) }()
	for i := range 3 {
		must(t, os.Mkdir(filepath.Join(root, "ab"), 0o700))
		must(t, os.WriteFile(filepath.Join(root, "ab", "f"), make([]byte, i), 0o600))
		if info, err := d.Stat("ab/f"); err != nil || info.Bytes != int64(i) {
			t.Errorf("the folder made %d times: %+v, %v", i+1, info, err)
		}
		if _, err := d.Stat("ab/none"); !errors.Is(err, unix.ENOENT) {
			t.Errorf("a file that is not there: %v", err)
		}
		must(t, os.RemoveAll(filepath.Join(root, "ab")))
		if _, err := d.Stat("ab/f"); !errors.Is(err, unix.ENOENT) {
			t.Errorf("after it was removed: %v", err)
		}
	}
	must(t, os.Symlink("/etc", filepath.Join(root, "ab")))
	if _, err := d.Stat("ab/passwd"); !errors.Is(err, unix.ENOTDIR) {
		t.Errorf("a link in its place: %v", err)
	}
}

// A hole frees the space of a part of a file without changing its length.
func TestPunchHole(t *testing.T) {
	d, err := dirfs.OS().OpenDir(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	f, err := d.Open("f", os.O_RDWR|os.O_CREATE)
	if err != nil {
		t.Fatal(err)
	}
	const page = 64 << 10 // at least the block size of a file system
	b := bytes.Repeat([]byte{1}, 3*page)
	if _, err := f.WriteAt(b, 0); err != nil {
		t.Fatal(err)
	}
	file, ok := f.(interface {
		dirfs.Sizer
		dirfs.DataFinder
	})
	if !ok {
		t.Fatal("a file of the system has no holes")
	}
	err = file.PunchHole(page, page)
	if errors.Is(err, errdefs.ErrNotSupported) {
		testkit.Skip(t, "holes", err.Error())
	}
	if err != nil {
		t.Fatal(err)
	}
	if at, err := file.NextHole(0); at != page || err != nil {
		t.Errorf("a hole at %d, %v", at, err)
	}
	if at, err := file.NextData(page); at != 2*page || err != nil {
		t.Errorf("data at %d, %v", at, err)
	}
	clear(b[page : 2*page])
	got := make([]byte, len(b))
	if _, err := f.ReadAt(got, 0); err != nil || !bytes.Equal(got, b) {
		t.Errorf("wrong bytes are read, %v", err)
	}
	if err := errors.Join(f.Close(), d.Close()); err != nil {
		t.Error(err)
	}
}
