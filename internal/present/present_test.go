package present

import (
	"bytes"
	"errors"
	"math"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/kvlane/kvlane/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

func TestUnits(t *testing.T) {
	for n, want := range map[int64]string{
		0: "0 B", 1023: "1023 B", 1024: "1 KiB", 1536: "1.5 KiB", 80 << 30: "80 GiB", 1<<30 - 8192: "1.0 GiB", 1<<20 - 1: "1.0 MiB",
		math.MaxInt64: "8 EiB", -2048: "-2 KiB", 85017755648: "79.2 GiB",
	} {
		if got := Bytes(n); got != want {
			t.Errorf("Bytes(%d) is %q, want %q", n, got, want)
		}
	}
	for n, want := range map[int64]string{0: "0 B", 4096: "4 KiB", 4097: "4097 B", 3 << 29: "1536 MiB", 1 << 40: "1 TiB", 1000: "1000 B"} {
		if got := Size(n); got != want {
			t.Errorf("Size(%d) is %q, want %q", n, got, want)
		}
	}
	for n, want := range map[int64]string{0: "0", 999: "999", 1000: "1,000", -1234567: "-1,234,567", -100: "-100"} {
		if got := Count(n); got != want {
			t.Errorf("Count(%d) is %q, want %q", n, got, want)
		}
	}
	for d, want := range map[time.Duration]string{
		0: "0", 850: "850 ns", 999*time.Nanosecond + 600: "1.6 µs", 22431 * time.Microsecond: "22 ms", 1614 * time.Microsecond: "1.6 ms",
		999600: "1.0 ms", 9960 * time.Microsecond: "10 ms", 999600 * time.Microsecond: "1.0 s", 59700 * time.Millisecond: "1m0s", 82 * time.Second: "1m22s", 3584 * time.Millisecond: "3.6 s",
	} {
		if got := Duration(d); got != want {
			t.Errorf("Duration(%d) is %q, want %q", d, got, want)
		}
	}
	for v, want := range map[float64]string{0: "0.00", 0.361: "0.36", 5.06: "5.06", 9.999: "10.0", 51.25: "51.2", 99.96: "100", 5234.4: "5,234"} {
		if got := Rate(v); !strings.HasPrefix(got, want) {
			t.Errorf("Rate(%v) is %q, want %q", v, got, want)
		}
	}
	for s, want := range map[string]string{
		"": "", "/a b/é✓: it's": "/a b/é✓: it's", "n\nclean  it is": `"n\nclean  it is"`, "\x1b]0;pwn\a": `"\x1b]0;pwn\a"`, "\x9bm": `"\x9bm"`, "a\tb": `"a\tb"`, "\u202etxt": `"\u202etxt"`,
	} {
		if got := Name(s); got != want {
			t.Errorf("Name(%q) is %s, want %s", s, got, want)
		}
	}
	if got := Percent(0.0796) + " " + Things(1, "block") + " " + Things(2000, "block") + " " + Micros(10.7); got != "8.0% 1 block 2,000 blocks 11 µs" {
		t.Error(got)
	}
}

// everything returns a page with every kind of element.
func everything(s Screen) *Page {
	p := NewPage(s)
	p.Verdict(Good, "All of it holds, which takes a line and a half where the terminal has as few columns as terminals used to have.")
	p.Gap()
	p.Check(Warn, "%d of %d", 1, 2)
	p.Check(Bad, "this one does not hold, for a reason that is longer than a line of a narrow terminal, so that it goes on below")
	p.Heading("Figures")
	wide := &Table{Head: []string{"path", "way"}, Keys: 2, Right: "  rrrrrrrr"}
	for i := range 8 {
		wide.Head = append(wide.Head, Size(1<<(8+2*i)))
	}
	for _, path := range []string{"copy-engine", "kernel"} {
		row := []string{path, "h2d"}
		for i := range 8 {
			row = append(row, Rate(float64(i)*7.125))
		}
		wide.Row(row...)
	}
	p.Table(wide)
	p.Heading("Reasons")
	p.Table(&Table{Prose: true, Rows: [][]string{
		{"/a/path/that/cannot/be/broken", "yes", "a reason of many words, none of which is broken, and which are all below one another"},
		{"/b", "no", ""},
	}})
	p.Define("h2d", "host to device")
	p.Define("h2d", "said twice")
	return p
}

func text(t *testing.T, p *Page) string {
	t.Helper()
	var b bytes.Buffer
	if err := p.Write(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestPage(t *testing.T) {
	const want = `✓ All of it holds, which takes a line and a half
  where the terminal has as few columns as
  terminals used to have.

  ! 1 of 2
  ✗ this one does not hold, for a reason that is
    longer than a line of a narrow terminal, so
    that it goes on below

Figures
  path         way  256 B  1 KiB  4 KiB  16 KiB
  copy-engine  h2d   0.00   7.12   14.2    21.4
  kernel       h2d   0.00   7.12   14.2    21.4

  path         way  64 KiB  256 KiB  1 MiB  4 MiB
  copy-engine  h2d    28.5     35.6   42.8   49.9
  kernel       h2d    28.5     35.6   42.8   49.9

Reasons
  /a/path/that/cannot/be/broken  yes
    a reason of many words, none of which is
    broken, and which are all below one another
  /b                             no

  h2d  host to device
`
	if diff := cmp.Diff(want, text(t, everything(Screen{Width: 50}))); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if lines := strings.Split(text(t, everything(Screen{})), "\n"); len(lines) != 16 {
		t.Errorf("without bounds it has %d lines:\n%s", len(lines), strings.Join(lines, "\n"))
	}
	failed := errors.New("disk full")
	if err := everything(Screen{}).Write(failingWriter{failed}); !errors.Is(err, failed) {
		t.Errorf("error %v, want the writer's", err)
	}
}

type failingWriter struct{ err error }

func (w failingWriter) Write([]byte) (int, error) { return 0, w.err }

// No line is wider than the screen, except a single long word, and no word is lost or broken.
func TestDefectLineIsWiderThanTheScreen(t *testing.T) {
	words := strings.Fields(text(t, everything(Screen{})))
	for width := 32; width < 200; width++ {
		got := text(t, everything(Screen{Width: width}))
		for line := range strings.Lines(got) {
			line = strings.TrimRight(line, "\n")
			if utf8.RuneCountInString(line) > width && len(strings.Fields(line)) > 3 {
				t.Errorf("at %d columns a line has %d:\n%s", width, utf8.RuneCountInString(line), line)
			}
		}
		has := map[string]bool{}
		for _, w := range strings.Fields(got) {
			has[w] = true
		}
		for _, w := range words {
			if !has[w] {
				t.Errorf("at %d columns %q is lost or broken", width, w)
			}
		}
	}
}

// Colors are used only on terminals that support and permit them.
func TestScreen(t *testing.T) {
	for name, c := range map[string]struct {
		columns, noColor, term string
		terminal, piped        Screen
	}{
		"as it is": {"", "", "xterm", Screen{120, true}, Screen{}},
		"COLUMNS":  {"72", "", "xterm", Screen{72, true}, Screen{72, false}},
		"NO_COLOR": {"", "1", "xterm", Screen{120, false}, Screen{}},
		"dumb":     {"x", "", "dumb", Screen{120, false}, Screen{}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("COLUMNS", c.columns)
			t.Setenv("NO_COLOR", c.noColor)
			t.Setenv("TERM", c.term)
			if s := ScreenOf(&bytes.Buffer{}); s != c.piped {
				t.Errorf("piped: %+v, want %+v", s, c.piped)
			}
			tty, written := testkit.Terminal(t, 120)
			s := ScreenOf(tty)
			if s != c.terminal {
				t.Errorf("on a terminal: %+v, want %+v", s, c.terminal)
			}
			if err := everything(s).Write(tty); err != nil {
				t.Fatal(err)
			}
			if got := written(); strings.Contains(got, "\x1b[") != c.terminal.Color || !strings.Contains(got, "holds") {
				t.Errorf("colors %v:\n%q", c.terminal.Color, got)
			}
		})
	}
}

func FuzzPage(f *testing.F) {
	f.Add("a b\tc\n  d", uint8(9), uint8(3))
	f.Add("✓ µ", uint8(0), uint8(0))
	f.Fuzz(func(t *testing.T, s string, width, keys uint8) {
		p := NewPage(Screen{Width: int(width)})
		p.Verdict(Bad, "%s", s)
		p.Table(&Table{Head: strings.Split(s, " "), Rows: [][]string{strings.Split(s, "\t"), {s}}, Keys: int(keys), Prose: len(s)%2 == 0})
		if got := text(t, p); !strings.HasPrefix(got, "✗") {
			t.Errorf("%q", got)
		}
	})
}
