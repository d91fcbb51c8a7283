package dl

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/leak"
	"github.com/kvlane/kvlane/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

const libc = "libc.so.6"

func TestOpenMissingKeepsTheLoadersReason(t *testing.T) {
	_, err := Open("libkvlane-none.so.1", "libkvlane-none.so")
	if !errors.Is(err, errdefs.ErrNotSupported) {
		t.Fatalf("error %v is not ErrNotSupported", err)
	}
	for _, want := range []string{"libkvlane-none.so.1:", "libkvlane-none.so:", "No such file"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error %q lacks %q", err, want)
		}
	}
}

// The brief text of a missing library is short. If a library exists but cannot be used, it contains
// the loader's reason.
func TestBrief(t *testing.T) {
	gone := errors.New("liba.so: cannot open shared object file: No such file or directory")
	needs := errors.New("libneeded.so: cannot open shared object file: No such file or directory")
	for _, c := range []struct {
		e    MissingError
		want string
	}{
		{MissingError{[]string{"liba.so"}, []error{gone}}, "liba.so not found"},
		{MissingError{[]string{"libb.so"}, []error{needs}}, needs.Error()},
		{MissingError{[]string{"liba.so", "libb.so"}, []error{gone, errors.New("libb.so: wrong ELF class: ELFCLASS32")}}, gone.Error() + "\nlibb.so: wrong ELF class: ELFCLASS32"},
	} {
		if got := c.e.Brief(); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
	_, err := Open("libkvlane-none.so.1")
	var missing *MissingError
	if !errors.As(err, &missing) || !strings.Contains(missing.Brief(), "libkvlane-none.so.1") {
		t.Errorf("%v is no MissingError that names the library", err)
	}
}

func TestOpenFileThatIsNoLibrary(t *testing.T) {
	name := filepath.Join(t.TempDir(), "libtext.so")
	if err := os.WriteFile(name, []byte("this is no ELF file, but long enough to have held a header of one"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Open(name)
	if !errors.Is(err, errdefs.ErrNotSupported) || !strings.Contains(err.Error(), name) {
		t.Fatalf("error %v: want ErrNotSupported naming %s", err, name)
	}
}

func TestOpenWithoutNames(t *testing.T) {
	if _, err := Open(); !errors.Is(err, errdefs.ErrInvalid) {
		t.Fatalf("error %v is not ErrInvalid", err)
	}
}

func TestOpenTakesTheFirstThatIsThere(t *testing.T) {
	before := leak.Live()["handles"]
	l, err := Open("libkvlane-none.so.1", libc)
	if err != nil {
		t.Fatal(err)
	}
	if l.Name() != libc {
		t.Errorf("name %q, want %q", l.Name(), libc)
	}
	if p, err := l.Symbol("strlen"); err != nil || p == 0 {
		t.Errorf("strlen at %#x: %v", p, err)
	}
	if _, err := l.Symbol("kvlane_no_such_symbol"); !errors.Is(err, errdefs.ErrNotSupported) || !strings.Contains(err.Error(), "kvlane_no_such_symbol") {
		t.Errorf("error %v: want ErrNotSupported naming the symbol", err)
	}
	for range 2 {
		if err := l.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	}
	if _, err := l.Symbol("strlen"); !errors.Is(err, errdefs.ErrClosed) {
		t.Errorf("symbol of a closed library: %v, want ErrClosed", err)
	}
	if after := leak.Live()["handles"]; after != before {
		t.Errorf("live handles changed from %d to %d", before, after)
	}
}

// Bind sets the functions that the library has, and reports the missing ones.
func TestBind(t *testing.T) {
	lib, err := Open("libc.so.6")
	if err != nil {
		t.Fatal(err)
	}
	defer lib.Close()
	var abs, none func(int32) int32
	s := lib.Symbols()
	s.Bind(&abs, "abs")
	s.Bind(&none, "kvlane_no_such_function")
	if err := s.Missing(); !errors.Is(err, errdefs.ErrNotSupported) || none != nil {
		t.Errorf("a missing function: %v", err)
	}
	if got := abs(-7); got != 7 {
		t.Errorf("abs(-7) is %d", got)
	}
}
