package dirfstest

import (
	"errors"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

func testBadNames(s *suite) {
	s.must(s.Mkdir("folder"))
	s.write("folder/f", "x")
	s.write("f", "x")
	for _, name := range []string{"", "/", "/f", "..", "../f", "folder/..", "folder/../f", "folder//f", "folder/", "./f", "folder/./f"} {
		s.refuses(name, os.O_RDWR|os.O_CREATE, unix.EINVAL)
		_, err := s.Stat(name)
		s.fails("stat", err, unix.EINVAL)
		_, err = s.ReadDir(name)
		s.fails("readdir", err, unix.EINVAL)
		s.fails("mkdir", s.Mkdir(name), unix.EINVAL)
		s.fails("rename from", s.Rename(name, "new", true), unix.EINVAL)
		s.fails("rename to", s.Rename("f", name, true), unix.EINVAL)
		s.fails("remove", s.Remove(name), unix.EINVAL)
		s.fails("settime", s.SetTime(name, time.Unix(1, 0)), unix.EINVAL)
	}
}

func (s *suite) list(name string, want ...string) {
	s.Helper()
	names, err := s.ReadDir(name)
	if err != nil || !slices.Equal(names, want) {
		s.Errorf("list %s: %q, %v; want %q", name, names, err, want)
	}
}

func testFolders(s *suite) {
	s.list(".")
	s.must(s.Mkdir("c"))
	s.must(s.Mkdir("c/deep"))
	s.write("b", "x")
	s.write("c/deep/f", "x")
	s.must(s.Mkdir("a"))
	s.list(".", "a", "b", "c")
	s.list("c/deep", "f")
	if i := s.stat("c/deep"); !i.Type.IsDir() {
		s.Errorf("stat of a folder: %+v", i)
	}
	for _, name := range []string{"a", "b", "c/deep", "."} {
		s.fails("mkdir "+name, s.Mkdir(name), unix.EEXIST)
	}
	for name, want := range map[string]error{"none": unix.ENOENT, "none/x": unix.ENOENT, "a/x": unix.ENOENT, "b/x": unix.ENOTDIR} {
		_, err := s.Stat(name)
		s.fails("stat "+name, err, want)
		_, err = s.ReadDir(name)
		s.fails("readdir "+name, err, want)
		s.fails("remove "+name, s.Remove(name), want)
	}
	s.fails("mkdir", s.Mkdir("none/x"), unix.ENOENT)
	s.fails("mkdir", s.Mkdir("b/x"), unix.ENOTDIR)
	_, err := s.ReadDir("b")
	s.fails("readdir of a file", err, unix.ENOTDIR)
	s.fails("remove a folder that is not empty", s.Remove("c"), unix.ENOTEMPTY)
	s.fails("remove .", s.Remove("."), unix.EINVAL)
	for _, name := range []string{"a", "b", "c/deep/f", "c/deep", "c"} {
		s.must(s.Remove(name))
	}
	s.list(".")
}

func testOpenDir(s *suite) {
	s.must(s.Mkdir("folder"))
	s.write("folder/f", "x")
	inner := s.openDir(s.root + "/folder")
	names, err := inner.ReadDir(".")
	if err != nil || !slices.Equal(names, []string{"f"}) {
		s.Errorf("list: %q, %v", names, err)
	}
	// An open folder is the same folder after its name was changed.
	s.must(s.Rename("folder", "moved", true))
	if i, err := inner.Stat("."); err != nil || i.Inode != s.stat("moved").Inode {
		s.Errorf("after it was renamed: %+v, %v", i, err)
	}
	s.must(inner.Rename("f", "g", true))
	s.list("moved", "g")
	for path, want := range map[string]error{"/folder": unix.ENOENT, "/moved/g": unix.ENOTDIR, "/moved/g/x": unix.ENOTDIR} {
		_, err := s.fs.OpenDir(s.root + path)
		s.fails("open "+path, err, want)
	}
}

// Creating a file in a removed folder fails. On NFS the error is ESTALE.
func testRemovedFolder(s *suite) {
	removed := func(what string, err error) {
		want := unix.ENOENT
		if errors.Is(err, unix.ESTALE) {
			want = unix.ESTALE
		}
		s.fails(what, err, want)
	}
	s.must(s.Mkdir("folder"))
	s.write("f", "x")
	gone := s.openDir(s.root + "/folder")
	s.must(s.Remove("folder"))
	_, err := gone.Open("f", os.O_RDWR|os.O_CREATE)
	removed("create in a removed folder", err)
	removed("mkdir in a removed folder", gone.Mkdir("x"))
	_, err = gone.Stat("f")
	removed("stat in a removed folder", err)
	s.must(s.Mkdir("folder"))
	removed("mkdir in its predecessor", gone.Mkdir("x"))
	s.list("folder")
}

func testRename(s *suite) {
	s.must(s.Mkdir("a"))
	s.must(s.Mkdir("b"))
	s.must(s.Mkdir("b/empty"))
	s.write("a/f", "f")
	s.write("a/g", "g")
	number := s.stat("a/f").Inode
	s.must(s.Rename("a/f", "a/f", true))
	s.must(s.Rename("a/f", "a/h", true)) // to a new name
	s.must(s.Rename("a/h", "a/g", true)) // replaces a file
	s.must(s.Rename("a/g", "b/g", true)) // into another folder
	s.checkContents("b/g", "f")
	if i := s.stat("b/g"); i.Inode != number {
		s.Errorf("a rename made another file of it: %+v, was %d", i, number)
	}
	s.list("a")
	s.write("a/deep", "x")
	s.must(s.Rename("a", "b/empty", true)) // a folder replaces an empty folder
	s.list("b", "empty", "g")
	s.list("b/empty", "deep")
	s.must(s.Rename("b/empty", "c", true)) // into the parent folder
	s.list(".", "b", "c")
}

// A rename with replace set to false must not replace an existing name.
func testRenameNew(s *suite) {
	s.must(s.Mkdir("folder"))
	s.must(s.Mkdir("empty"))
	s.write("f", "f")
	s.write("g", "g")
	for _, r := range [][2]string{{"f", "g"}, {"f", "f"}, {"f", "empty"}, {"empty", "f"}, {"empty", "folder"}} {
		s.fails("rename "+r[0]+" to "+r[1], s.Rename(r[0], r[1], false), unix.EEXIST)
	}
	s.fails("rename nothing", s.Rename("none", "new", false), unix.ENOENT)
	s.checkContents("g", "g")
	s.must(s.Rename("f", "folder/f", false))
	s.must(s.Rename("empty", "folder/empty", false))
	s.checkContents("folder/f", "f")
	s.list(".", "folder", "g")
	s.list("folder", "empty", "f")
}

func testSyncParents(s *suite) {
	s.must(s.Mkdir("a"))
	s.must(s.Mkdir("a/b"))
	s.must(s.fs.SyncParents(s.root + "/a/b"))
	s.fails("sync the parents of nothing", s.fs.SyncParents(s.root+"/none"), unix.ENOENT)
}

func testRenameRefuses(s *suite) {
	s.must(s.Mkdir("full"))
	s.must(s.Mkdir("full/in"))
	s.must(s.Mkdir("empty"))
	s.write("f", "x")
	for _, r := range []struct {
		from, to string
		want     error
	}{
		{"none", "f", unix.ENOENT},
		{"none/x", "y", unix.ENOENT},
		{"f", "none/x", unix.ENOENT},
		{"f", "f/x", unix.ENOTDIR},
		{"f/x", "y", unix.ENOTDIR},
		{"f", "empty", unix.EISDIR},
		{"empty", "f", unix.ENOTDIR},
		{"empty", "full", unix.ENOTEMPTY},
		{"full", "full/in/x", unix.EINVAL},
		{".", "x", unix.EBUSY},
		{"empty", ".", unix.EBUSY},
	} {
		s.fails("rename "+r.from+" to "+r.to, s.Rename(r.from, r.to, true), r.want)
	}
	s.list(".", "empty", "f", "full")
	s.list("full", "in")
}
