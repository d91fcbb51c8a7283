package replay

import (
	"io"
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"
)

// Bar returns a function for Config.Progress that draws a progress bar on w.
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
		// An error of w must not stop the replay.
		_ = bar.Add(1)
	}
}
