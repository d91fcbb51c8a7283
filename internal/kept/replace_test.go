package kept_test

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/internal/kept"
)

func fill(text string, err error) func(io.Writer) error {
	return func(w io.Writer) error {
		_, werr := io.WriteString(w, text)
		return errors.Join(werr, err)
	}
}

// has checks the content and the mode of file, and that its folder contains no other file.
func has(t *testing.T, file, text string, mode os.FileMode) {
	t.Helper()
	b, err := os.ReadFile(file)
	info, serr := os.Stat(file)
	if err != nil || serr != nil || string(b) != text || info.Mode().Perm() != mode {
		t.Errorf("%s has %q, %v, %v; want %q with mode %v", file, b, err, info, text, mode)
	}
	if all, err := os.ReadDir(filepath.Dir(file)); err != nil || len(all) != 1 {
		t.Errorf("the folder has %v, %v", all, err)
	}
}

// TestReplace checks that a file is replaced only when the new one is complete, keeps its mode, and
// stays unchanged after an error.
func TestReplace(t *testing.T) {
	file := filepath.Join(t.TempDir(), "f")
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.WriteFile(file, []byte("old"), 0o640))
	failed := errors.New("failed")
	if err := kept.Replace(file, fill("new", failed)); !errors.Is(err, failed) {
		t.Error(err)
	}
	has(t, file, "old", 0o640)
	must(kept.CheckReplace(file))
	has(t, file, "old", 0o640)
	must(kept.Replace(file, fill("new", nil)))
	has(t, file, "new", 0o640)
	link := filepath.Join(t.TempDir(), "link")
	must(os.Symlink(file, link))
	must(kept.Replace(link, fill("by link", nil)))
	has(t, file, "by link", 0o640)
	if to, err := os.Readlink(link); err != nil || to != file {
		t.Errorf("the link names %q, %v", to, err)
	}
}

// TestReplaceNew checks that a new file gets the usual mode, and that an error leaves no file.
func TestReplaceNew(t *testing.T) {
	file := filepath.Join(t.TempDir(), "f")
	usual := filepath.Join(t.TempDir(), "usual")
	if err := os.WriteFile(usual, nil, 0o666); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(usual)
	if err != nil {
		t.Fatal(err)
	}
	if err := kept.CheckReplace(file); err != nil {
		t.Fatal(err)
	}
	if err := kept.Replace(file, fill("new", errors.New("failed"))); err == nil {
		t.Fatal("an error was dropped")
	}
	if all, err := os.ReadDir(filepath.Dir(file)); err != nil || len(all) != 0 {
		t.Fatalf("the folder has %v, %v", all, err)
	}
	if err := kept.Replace(file, fill("new", nil)); err != nil {
		t.Fatal(err)
	}
	has(t, file, "new", info.Mode().Perm())
}

// TestReplaceOthers checks that a pipe is written in place. Folders and files in missing folders
// are refused with an error that contains the given name.
func TestReplaceOthers(t *testing.T) {
	dir := t.TempDir()
	pipe := filepath.Join(dir, "pipe")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := kept.CheckReplace(pipe); err != nil {
		t.Error(err)
	}
	got := make(chan string, 1)
	go func() {
		b, err := os.ReadFile(pipe)
		if err != nil {
			b = []byte(err.Error())
		}
		got <- string(b)
	}()
	if err := kept.Replace(pipe, fill("through", nil)); err != nil {
		t.Error(err)
	}
	if s := <-got; s != "through" {
		t.Errorf("the pipe brought %q", s)
	}
	if err := kept.Replace("/dev/null", fill("x", nil)); err != nil {
		t.Error(err)
	}
	missing := filepath.Join(dir, "missing", "f")
	for name, want := range map[string]error{dir: syscall.EISDIR, missing: os.ErrNotExist} {
		for _, err := range []error{kept.CheckReplace(name), kept.Replace(name, fill("x", nil))} {
			var p *os.PathError
			if !errors.Is(err, want) || !errors.As(err, &p) || p.Path != name {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}
