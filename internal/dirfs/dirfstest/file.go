package dirfstest

import (
	"errors"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/dirfs"
)

func testContents(s *suite) {
	f := s.open("f", os.O_RDWR|os.O_CREATE|os.O_EXCL)
	s.reads(f, "")
	for _, w := range []struct {
		text string
		off  int64
		want string
	}{
		{"hello", 3, "\x00\x00\x00hello"},
		{"", 99, "\x00\x00\x00hello"},
		{"abc", 0, "abchello"},
		{"xyz", 7, "abchellxyz"},
	} {
		if n, err := f.WriteAt([]byte(w.text), w.off); n != len(w.text) || err != nil {
			s.Errorf("write: %d, %v", n, err)
		}
		s.reads(f, w.want)
	}
	b := make([]byte, 4)
	for _, r := range []struct {
		off, n int64
		text   string
		err    error
	}{{0, 4, "abch", nil}, {6, 4, "lxyz", nil}, {8, 4, "yz", io.EOF}, {10, 4, "", io.EOF}, {50, 1, "", io.EOF}, {50, 0, "", nil}} {
		if n, err := f.ReadAt(b[:r.n], r.off); string(b[:n]) != r.text || !errors.Is(err, r.err) {
			s.Errorf("read %d bytes at %d: %q, %v; want %q, %v", r.n, r.off, b[:n], err, r.text, r.err)
		}
	}
	if i, j := s.stat("f"), s.stat("."); i.Bytes != 10 || !i.Regular() || j.Regular() || !j.Type.IsDir() || i.Inode == 0 || i.Inode == j.Inode {
		s.Errorf("stat of a file and its folder: %+v, %+v", i, j)
	}
	cut := s.open("f", os.O_WRONLY|os.O_TRUNC)
	s.reads(f, "")
	if _, err := cut.WriteAt([]byte("z"), 2); err != nil {
		s.Error(err)
	}
	s.reads(f, "\x00\x00z")
}

func testFlags(s *suite) {
	s.must(s.Mkdir("folder"))
	s.write("f", "text")
	s.refuses("none", os.O_RDWR, unix.ENOENT)
	s.refuses("none", os.O_RDONLY|unix.O_DIRECTORY, unix.ENOENT)
	s.refuses("none/f", os.O_RDWR|os.O_CREATE, unix.ENOENT)
	s.refuses("f/f", os.O_RDWR|os.O_CREATE, unix.ENOTDIR)
	s.refuses("f", os.O_RDONLY|unix.O_DIRECTORY, unix.ENOTDIR)
	for _, name := range []string{"f", "folder"} {
		s.refuses(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, unix.EEXIST)
	}
	for _, name := range []string{"folder", "."} {
		for _, flag := range []int{os.O_RDONLY, os.O_RDWR, os.O_WRONLY | os.O_TRUNC, os.O_RDWR | os.O_CREATE, os.O_RDWR | unix.O_DIRECTORY} {
			s.refuses(name, flag, dirfs.ErrIrregular)
		}
	}
	s.checkContents("f", "text")
	_, err := s.open("f", os.O_RDONLY).WriteAt([]byte("x"), 0)
	s.fails("write what is open for reading", err, unix.EBADF)
	_, err = s.open("f", os.O_WRONLY).ReadAt(make([]byte, 1), 0)
	s.fails("read what is open for writing", err, unix.EBADF)
	_, err = s.open("folder", os.O_RDONLY|unix.O_DIRECTORY).ReadAt(make([]byte, 1), 0)
	s.fails("read a directory", err, unix.EISDIR)
	_, err = s.open("f", os.O_RDWR).WriteAt([]byte("x"), -1)
	s.fails("write before the start", err, unix.EINVAL)
	s.open("f", os.O_WRONLY|os.O_CREATE) // an existing file
	s.checkContents("f", "text")
}

// An open file exists after its name was removed. A new file with that name is a different file.
func testUnlinked(s *suite) {
	s.write("a", "first")
	f := s.open("a", os.O_RDWR)
	first := s.stat("a")
	s.must(s.Remove("a"))
	s.reads(f, "first")
	s.write("a", "second")
	s.write("b", "third")
	second := s.open("a", os.O_RDONLY)
	if i := s.stat("a"); i.Inode == first.Inode {
		s.Errorf("a new file has the inode of one that is open: %+v", i)
	}
	s.must(s.Rename("b", "a", true))
	if _, err := f.WriteAt([]byte("F"), 0); err != nil {
		s.Error(err)
	}
	s.reads(f, "First")
	s.reads(second, "second")
	s.checkContents("a", "third")
	if i, err := f.Stat(); err != nil || i.Inode != first.Inode {
		s.Errorf("stat of an open file that has no name: %+v, %v", i, err)
	}
}

func testSetTime(s *suite) {
	s.must(s.Mkdir("folder"))
	s.write("folder/f", "x")
	when := time.Unix(7, 9)
	for _, name := range []string{"folder/f", "folder", "."} {
		s.must(s.SetTime(name, when))
		if i := s.stat(name); !i.Modified.Equal(when) {
			s.Errorf("%s was modified at %v, want %v", name, i.Modified, when)
		}
	}
	s.write("folder/f", "y")
	if i := s.stat("folder/f"); !i.Modified.After(when) {
		s.Errorf("a file that was written just now was modified at %v", i.Modified)
	}
	s.fails("set the time of nothing", s.SetTime("none", when), unix.ENOENT)
}

func testSync(s *suite) {
	s.write("f", "x")
	s.must(s.open("f", os.O_RDWR).Sync())
	s.must(s.open("f", os.O_RDONLY).Sync())
	d := s.open(".", os.O_RDONLY|unix.O_DIRECTORY)
	s.must(d.Sync())
	if i, err := d.Stat(); err != nil || i != s.stat(".") {
		s.Errorf("stat of an open directory: %+v, %v", i, err)
	}
	s.checkContents("f", "x")
}

// A lock belongs to one open of the file, under any of its names, and ends when that is closed. The
// file is opened for writing because NFS requires it for locks.
func testLock(s *suite) {
	s.write("f", "x")
	s.write("other", "x")
	f, err := s.Open("f", os.O_RDWR)
	s.must(err)
	s.must(f.Lock())
	s.must(f.Lock())
	s.must(s.open("other", os.O_RDWR).Lock())
	s.must(s.Rename("f", "g", true))
	second := s.open("g", os.O_RDWR)
	s.fails("lock what is locked", second.Lock(), errdefs.ErrBusy)
	other, err := s.openDir(s.root).Open("g", os.O_WRONLY)
	s.must(err)
	s.fails("lock what is locked", other.Lock(), errdefs.ErrBusy)
	s.must(other.Close())
	s.fails("lock what is locked", second.Lock(), errdefs.ErrBusy)
	s.must(f.Close())
	s.must(second.Lock())
}

// Several goroutines replace and read one file. Each read returns complete contents.
func testConcurrent(s *suite) {
	const workers, rounds = 4, 50
	s.write("f", "0000")
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			text := []byte{'a' + byte(w), 'a' + byte(w), 'a' + byte(w), 'a' + byte(w)}
			own := "own" + string(text[:1])
			for range rounds {
				if err := replaceAndRead(s.Dir, own, text); err != nil {
					s.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	if names, err := s.ReadDir("."); err != nil || len(names) != 1 {
		s.Errorf("left behind: %q, %v", names, err)
	}
}

func replaceAndRead(d dirfs.Dir, own string, text []byte) error {
	f, err := d.Open(own, os.O_WRONLY|os.O_CREATE|os.O_EXCL)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(text, 0)
	if err = errors.Join(err, f.Close(), d.Rename(own, "f", true)); err != nil {
		return err
	}
	f, err = d.Open("f", os.O_RDONLY)
	if err != nil {
		return err
	}
	b := make([]byte, len(text))
	_, err = f.ReadAt(b, 0)
	if err == nil && (b[0] != b[1] || b[0] != b[3]) {
		err = errors.New("half a file: " + string(b))
	}
	_, serr := d.Stat("f")
	return errors.Join(err, serr, f.Close())
}
