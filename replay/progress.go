package replay

import (
	"io"
	"os"
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// Bar returns a function for Config.Progress that draws a progress bar with requests a second on w.
func Bar(w io.Writer) func(Step) {
	var once sync.Once
	var bar *progressbar.ProgressBar
	return func(s Step) {
		once.Do(func() {
			bar = progressbar.NewOptions(s.Total,
				progressbar.OptionSetWriter(w), progressbar.OptionSetDescription("replay"),
				progressbar.OptionShowIts(), progressbar.OptionSetItsString("requests"), progressbar.OptionShowCount(),
				progressbar.OptionThrottle(100*time.Millisecond), progressbar.OptionSetWidth(30),
				progressbar.OptionClearOnFinish(),
			)
		})
		// A bar that cannot be drawn is no reason to stop.
		_ = bar.Add(1)
	}
}

// Terminal reports whether w is a terminal, where a progress bar is welcome.
func Terminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}
