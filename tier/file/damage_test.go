package file_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/dirfs"
	"github.com/kvlane/kvlane/internal/dirfs/faultfs"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/tier"
	"github.com/kvlane/kvlane/tier/file"
	"github.com/kvlane/kvlane/tier/tiertest"
)

// A Put checks an existing file as a Get does. Otherwise the damage would stay unnoticed.
func TestDefectDamagedCopyIsTakenForStored(t *testing.T) {
	for name, damage := range map[string]func(t *testing.T, c *file.Config, path string) faultfs.Veto{
		"bit flip": func(t *testing.T, c *file.Config, path string) faultfs.Veto {
			flip(t, path, c.Formats[0].Layout.ShardOff(1))
			return nil
		},
		"cut off": func(t *testing.T, _ *file.Config, path string) faultfs.Veto { truncate(t, path, 100); return nil },
		"unreadable": func(t *testing.T, _ *file.Config, path string) faultfs.Veto {
			info, err := os.Stat(path)
			if err != nil {
				t.Fatal(err)
			}
			return func(op, p string) error {
				now, err := os.Stat(p)
				if op == "read" && err == nil && os.SameFile(now, info) {
					return syscall.EIO
				}
				return nil
			}
		},
		"not to be opened": func(t *testing.T, _ *file.Config, path string) faultfs.Veto {
			info, err := os.Stat(path)
			if err != nil {
				t.Fatal(err)
			}
			return func(op, p string) error {
				now, err := os.Stat(p)
				if op == "open" && err == nil && os.SameFile(now, info) {
					return syscall.EACCES
				}
				return nil
			}
		},
		"a FIFO": func(t *testing.T, _ *file.Config, path string) faultfs.Veto { replace(t, path, mkfifo); return nil },
		"a link": func(t *testing.T, _ *file.Config, path string) faultfs.Veto {
			replace(t, path, func(p string) error { return os.Symlink("/etc/passwd", p) })
			return nil
		},
		"a folder": func(t *testing.T, _ *file.Config, path string) faultfs.Veto {
			replace(t, path, func(p string) error { return os.MkdirAll(filepath.Join(p, "x"), 0o700) })
			return nil
		},
	} {
		for _, reopened := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				c := config(t)
				f := faultfs.New(dirfs.OS(), nil, nil)
				c.FS = f
				tr, key := open(t, c), tiertest.Key(1)
				put(t, tr, c.Formats[0], key)
				// Wait until the file time changes. The kernel updates it in steps of up to 10 ms.
				time.Sleep(11 * time.Millisecond)
				f.Forbid(damage(t, &c, path(c.Dirs[0], key)))
				if reopened {
					tr = open(t, c)
				} else {
					// A failed read makes the next Put check the file.
					if err := get(t, tr, c.Formats[0], key); err == nil {
						t.Fatal("the damage was not detected")
					}
				}
				kept := []bool{true}
				if err := tr.Kept(t.Context(), []block.Key{key}, kept); err != nil || kept[0] {
					t.Errorf("Kept of a damaged block: %v, %v", kept, err)
				}
				put(t, tr, c.Formats[0], key)
				if err := get(t, tr, c.Formats[0], key); err != nil {
					t.Errorf("after the put: %v", err)
				}
				if st := tr.Stats(); st.Blocks != 1 || st.Corrupt+st.Errors == 0 {
					t.Errorf("%+v", st)
				}
				if err := tr.Kept(t.Context(), []block.Key{key}, kept); err != nil || !kept[0] {
					t.Errorf("Kept after the put: %v, %v", kept, err)
				}
				f.Forbid(nil)
				if r, err := file.Verify(t.Context(), c.Dirs[0], nil); err != nil || !r.Clean() {
					t.Errorf("%+v, %v", r, err)
				}
			})
		}
	}
}

func mkfifo(path string) error { return unix.Mkfifo(path, 0o600) }

// replace removes a file and creates another kind of file in its place.
func replace(t *testing.T, path string, with func(path string) error) {
	t.Helper()
	if err := errors.Join(os.Remove(path), with(path)); err != nil {
		t.Fatal(err)
	}
}

// A process does not read a file again that it has written or read before.
func TestCopiesOfThisProcessAreNotReadAgain(t *testing.T) {
	c := config(t)
	reads := 0
	f := faultfs.New(dirfs.OS(), nil, nil)
	f.Forbid(func(op, _ string) error {
		if op == "read" {
			reads++
		}
		return nil
	})
	c.FS = f
	tr, key := open(t, c), tiertest.Key(1)
	put(t, tr, c.Formats[0], key, key)
	if reads != 0 {
		t.Errorf("%d reads of a block that was just written", reads)
	}
	tr = open(t, c)
	reads = 0
	put(t, tr, c.Formats[0], key)
	if reads == 0 {
		t.Error("the copy of another process was not read")
	}
	reads = 0
	put(t, tr, c.Formats[0], key)
	if err := get(t, tr, c.Formats[0], key); err != nil {
		t.Fatal(err)
	}
	reads = 0
	put(t, tr, c.Formats[0], key)
	if reads != 0 {
		t.Errorf("%d reads of a block that was just read", reads)
	}
}

// attack creates a directory of blocks, and calls plant to add hostile files to it.
func attack(t *testing.T, plant func(dir, victim string) error) (c file.Config, victim string) {
	t.Helper()
	c = config(t)
	victim = filepath.Join(t.TempDir(), "victim")
	write(t, victim, "precious")
	if err := plant(c.Dirs[0], victim); err != nil {
		t.Fatal(err)
	}
	return c, victim
}

func unharmed(t *testing.T, victim string) {
	t.Helper()
	if b, err := os.ReadFile(victim); err != nil || string(b) != "precious" {
		t.Errorf("the link's target: %q, %v", b, err)
	}
}

// In a shared directory another user may plant links. No command follows them or changes files
// outside the directory.
func TestDefectLinksAreFollowed(t *testing.T) {
	made := func(plant func(dir, victim string) error) func(dir, victim string) error {
		return func(dir, victim string) error {
			l := tiertest.NewFormat(t)
			tr, err := file.Open(t.Context(), file.Config{Dirs: []string{dir}, Formats: block.Formats{l}})
			if err != nil {
				return err
			}
			return errors.Join(tr.Close(t.Context()), plant(dir, victim))
		}
	}
	for name, tt := range map[string]struct {
		plant func(dir, victim string) error
		opens bool
	}{
		"marker's temporary": {func(dir, v string) error { return os.Symlink(v, filepath.Join(dir, "kvlane.json.tmp")) }, true},
		"lock":               {func(dir, v string) error { return os.Symlink(v, filepath.Join(dir, "kvlane.lock")) }, false},
		"lock to nowhere":    {func(dir, v string) error { return os.Symlink(v+"2", filepath.Join(dir, "kvlane.lock")) }, false},
		"marker": {made(func(dir, v string) error {
			return errors.Join(os.Rename(filepath.Join(dir, "kvlane.json"), v+".json"), os.Symlink(v+".json", filepath.Join(dir, "kvlane.json")))
		}), false},
		"tmp": {made(func(dir, v string) error {
			return errors.Join(os.RemoveAll(filepath.Join(dir, "tmp")), os.Symlink(filepath.Dir(filepath.Dir(v)), filepath.Join(dir, "tmp")))
		}), false},
		"a session": {made(func(dir, v string) error { return os.Symlink(filepath.Dir(v), filepath.Join(dir, "tmp", "x")) }), true},
		"a session's file": {made(func(dir, v string) error {
			return errors.Join(os.Mkdir(filepath.Join(dir, "tmp", "x"), 0o700), os.Symlink(v, filepath.Join(dir, "tmp", "x", "1")))
		}), true},
		"a session's lock": {made(func(dir, v string) error {
			return errors.Join(os.Mkdir(filepath.Join(dir, "tmp", "x"), 0o700), os.Symlink(v, filepath.Join(dir, "tmp", "x", "lock")))
		}), true},
		"a folder of blocks": {made(func(dir, v string) error {
			return os.Symlink(filepath.Dir(v), filepath.Join(dir, tiertest.Key(1).String()[:2]))
		}), true},
		"quarantine": {made(func(dir, v string) error { return os.Symlink(filepath.Dir(v), filepath.Join(dir, "quarantine")) }), true},
	} {
		t.Run(name, func(t *testing.T) {
			c, victim := attack(t, tt.plant)
			before := files(t, filepath.Dir(victim))
			tr, err := file.Open(t.Context(), c)
			if (err == nil) != tt.opens {
				t.Errorf("open: %v", err)
			}
			if err == nil {
				key := tiertest.Key(1)
				_ = tr.Put(t.Context(), key, image(t, c.Formats[0], key)) // may fail, but must not damage the victim
				if err := get(t, tr, c.Formats[0], key); err == nil {
					flip(t, path(c.Dirs[0], key), c.Formats[0].Layout.ShardOff(0))
					_ = get(t, tr, c.Formats[0], key)
				}
				if err := tr.Close(t.Context()); err != nil {
					t.Error(err)
				}
			}
			for _, do := range []func() error{
				func() error { _, err := file.Verify(t.Context(), c.Dirs[0], nil); return err },
				func() error { _, err := file.Repair(t.Context(), c.Dirs[0], nil); return err },
				func() error { _, err := file.GC(t.Context(), c.Dirs[0], 0, nil); return err },
				func() error { _, err := file.Inspect(t.Context(), c.Dirs[0]); return err },
			} {
				_ = do() // any result is allowed, but the victim must not change
			}
			unharmed(t, victim)
			if after := files(t, filepath.Dir(victim)); !slices.Equal(before, after) {
				t.Errorf("outside of the directory there was %q, is %q", before, after)
			}
		})
	}
}

// A folder among the temporary files, as some network file systems create them, cannot be removed
// by Open. The directory must stay usable.
func TestDefectFolderAmongTemporaryFilesStopsOpening(t *testing.T) {
	c := config(t)
	if err := open(t, c).Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(c.Dirs[0], "tmp", "x", "folder", "in it"), 0o700); err != nil {
		t.Fatal(err)
	}
	tr := open(t, c)
	put(t, tr, c.Formats[0], tiertest.Key(1))
	if st := tr.Stats(); st.Errors != 1 {
		t.Errorf("the folder that could not be removed is not counted: %+v", st)
	}
}

// Verify checks all files and reports those that it could not check.
func TestDefectVerifyHangsOrStopsAtWhatItShouldFind(t *testing.T) {
	c := config(t)
	all := keys(0, 12)
	tr := open(t, c)
	put(t, tr, c.Formats[0], all...)
	if err := tr.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	at := func(i int) string { return path(c.Dirs[0], all[i]) }
	replace(t, at(0), mkfifo)
	replace(t, at(1), func(p string) error { return os.Symlink(at(2), p) })
	replace(t, at(3), func(p string) error { return unix.Mknod(p, unix.S_IFSOCK|0o600, 0) })
	replace(t, at(4), func(p string) error { return os.Mkdir(p, 0o700) })
	flip(t, at(5), c.Formats[0].Layout.ShardOff(0))
	f := faultfs.New(dirfs.OS(), nil, nil)
	f.Forbid(func(op, p string) error {
		switch {
		case op == "read" && strings.HasSuffix(p, all[6].String()):
			return syscall.EIO
		case op == "open" && strings.HasSuffix(p, all[7].String()):
			return syscall.EACCES
		}
		return nil
	})
	r, err := file.VerifyOn(within(t, testkit.Patience()), f, c.Dirs[0])
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]file.Problem{
		at(0): file.Damaged, at(1): file.Damaged, at(3): file.Damaged, at(4): file.Damaged, at(5): file.Damaged,
		at(6): file.Unjudged, at(7): file.Unjudged,
	}
	for _, found := range r.Findings {
		if want[found.Path] != found.Problem {
			t.Errorf("%+v", found)
		}
		delete(want, found.Path)
	}
	if len(want) > 0 || r.Blocks != 10 {
		t.Errorf("verify did not find %v; %d blocks", want, r.Blocks)
	}
}

// Commands report a marker that is not a regular file instead of blocking on it.
func TestDefectMarkerThatIsAFIFOHangsEveryCommand(t *testing.T) {
	c := config(t)
	if err := open(t, c).Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	replace(t, filepath.Join(c.Dirs[0], "kvlane.json"), mkfifo)
	for name, do := range map[string]func(ctx context.Context) error{
		"open":    func(ctx context.Context) error { _, err := file.Open(ctx, c); return err },
		"list":    func(ctx context.Context) error { return file.List(ctx, c.Dirs[0], nil) },
		"inspect": func(ctx context.Context) error { _, err := file.Inspect(ctx, c.Dirs[0]); return err },
		"gc":      func(ctx context.Context) error { _, err := file.GC(ctx, c.Dirs[0], 0, nil); return err },
		"verify": func(ctx context.Context) error {
			r, err := file.Verify(ctx, c.Dirs[0], nil)
			if err == nil && !r.Clean() {
				err = errdefs.ErrCorrupt
			}
			return err
		},
	} {
		done := make(chan error, 1)
		go func() { done <- do(t.Context()) }()
		select {
		case err := <-done:
			if !errors.Is(err, errdefs.ErrCorrupt) {
				t.Errorf("%s: %v", name, err)
			}
		case <-time.After(testkit.Patience()):
			t.Fatalf("%s hangs", name)
		}
	}
}

// readOnly is a file system that is mounted read-only.
type readOnly struct{ dirfs.FS }

func (f readOnly) OpenDir(path string) (dirfs.Dir, error) {
	d, err := f.FS.OpenDir(path)
	return readOnlyDir{d}, err
}

type readOnlyDir struct{ dirfs.Dir }

func (d readOnlyDir) Open(name string, flag int) (dirfs.File, error) {
	if flag&(os.O_WRONLY|os.O_RDWR|os.O_CREATE) != 0 {
		return nil, syscall.EROFS
	}
	return d.Dir.Open(name, flag)
}

func (readOnlyDir) Mkdir(string) error                { return syscall.EROFS }
func (readOnlyDir) Rename(string, string, bool) error { return syscall.EROFS }
func (readOnlyDir) Remove(string) error               { return syscall.EROFS }
func (readOnlyDir) SetTime(string, time.Time) error   { return syscall.EROFS }

// A directory on a read-only mount can be verified and opened for reading.
func TestDefectReadOnlyMountCannotBeVerified(t *testing.T) {
	c := config(t)
	c.TouchAfter = time.Nanosecond
	tr := open(t, c)
	all := keys(0, 4)
	put(t, tr, c.Formats[0], all...)
	if err := tr.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	flip(t, path(c.Dirs[0], all[3]), c.Formats[0].Layout.ShardOff(0))
	mount := readOnly{dirfs.OS()}
	r, err := file.VerifyOn(t.Context(), mount, c.Dirs[0])
	if err != nil || r.Blocks != 4 || len(r.Findings) != 1 || r.Findings[0].Problem != file.Damaged {
		t.Errorf("verify: %+v, %v", r, err)
	}
	if _, err := file.Open(t.Context(), withFS(c, mount)); !errors.Is(err, errdefs.ErrReadOnly) {
		t.Errorf("open for writing: %v", err)
	}
	c.ReadOnly = true
	tr = open(t, withFS(c, mount))
	for i, key := range all {
		if err := get(t, tr, c.Formats[0], key); (err == nil) != (i < 3) {
			t.Errorf("block %d: %v", i, err)
		}
	}
	if !tr.ReadOnly() || state(t, tr, all[3]) != tier.Ready {
		t.Error("the damaged file was removed")
	}
	if err := tr.Put(t.Context(), all[3], image(t, c.Formats[0], all[3])); !errors.Is(err, errdefs.ErrReadOnly) {
		t.Errorf("put: %v", err)
	}
	if err := tr.Delete(t.Context(), all[0]); !errors.Is(err, errdefs.ErrReadOnly) {
		t.Errorf("delete: %v", err)
	}
	if _, err := tr.GC(t.Context(), 0); !errors.Is(err, errdefs.ErrReadOnly) {
		t.Errorf("gc: %v", err)
	}
	// The two errors are the refused operations.
	if st := tr.Stats(); st.Blocks != 4 || st.Corrupt != 1 || st.Errors != 2 {
		t.Errorf("%+v", st)
	}
	c.Dirs = []string{t.TempDir()}
	if _, err := file.Open(t.Context(), c); !errors.Is(err, errdefs.ErrNotFound) {
		t.Errorf("open an empty directory for reading: %v", err)
	}
}

func withFS(c file.Config, f dirfs.FS) file.Config {
	c.FS = f
	return c
}
