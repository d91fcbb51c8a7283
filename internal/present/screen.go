package present

import (
	"io"
	"os"
	"strconv"

	"golang.org/x/term"
)

// usualWidth is taken for that of a terminal which does not tell.
const usualWidth = 80

// Screen is where a page goes.
type Screen struct {
	Width int  // columns; zero: lines may have any length
	Color bool // whether escape sequences are understood and wanted
}

// ScreenOf returns what is known of w. COLUMNS goes before what a terminal says of itself, so that a script settles the width. Colors are
// left out where NO_COLOR (https://no-color.org) or TERM=dumb is set.
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
