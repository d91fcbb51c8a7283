package present

import (
	"io"
	"os"
	"strconv"

	"golang.org/x/term"
)

// usualWidth is the assumed width of a terminal whose size is unknown.
const usualWidth = 80

// Screen is the output of a page.
type Screen struct {
	Width int  // in columns; zero: unlimited
	Color bool // the terminal supports colors and they are not disabled
}

// ScreenOf returns the screen for w. COLUMNS overrides the terminal's width. NO_COLOR
// (https://no-color.org) and TERM=dumb disable colors.
func ScreenOf(w io.Writer) Screen {
	var s Screen
	if n, err := strconv.Atoi(os.Getenv("COLUMNS")); err == nil && n > 0 {
		s.Width = n
	}
	f, ok := terminal(w)
	if !ok {
		return s
	}
	if s.Width == 0 {
		s.Width = usualWidth
		if n, _, err := term.GetSize(int(f.Fd())); err == nil && n > 0 {
			s.Width = n
		}
	}
	s.Color = os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
	return s
}

// Terminal reports whether w is a terminal.
func Terminal(w io.Writer) bool {
	_, ok := terminal(w)
	return ok
}

func terminal(w io.Writer) (*os.File, bool) {
	if u, ok := w.(interface{ Unwrap() io.Writer }); ok {
		w = u.Unwrap()
	}
	f, ok := w.(*os.File)
	return f, ok && term.IsTerminal(int(f.Fd()))
}
