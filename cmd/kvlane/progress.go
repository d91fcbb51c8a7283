package main

import (
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"

	"github.com/kvlane/kvlane/internal/present"
)

// lineInterval is the time between the lines of a progress that is not on a terminal. Tests of
// commands increase it, because any command may take that long on a busy machine.
var lineInterval = 10 * time.Second

// progress shows on standard error how far a long operation is, with its rate and the remaining
// time: a bar on a terminal, and otherwise a line every 10 seconds. Its methods may be called
// concurrently.
type progress struct {
	w         io.Writer
	operation string
	drawn     bool // draw a bar
	bytes     bool // steps are bytes; set it before the first show
	now       func() time.Time
	interval  time.Duration // between lines

	mu          sync.Mutex
	bar         *progressbar.ProgressBar // guarded by mu
	what        string                   // on the bar; guarded by mu
	start, line time.Time                // guarded by mu
}

// newProgress returns a progress that has shown nothing. forced draws a bar anywhere.
func newProgress(w io.Writer, operation string, forced bool) *progress {
	p := &progress{w: w, operation: operation, drawn: forced || present.Terminal(w), now: time.Now, interval: lineInterval}
	p.start = p.now()
	p.line = p.start
	return p
}

// show shows that done of total steps are done. what describes the present step, or is empty. A
// total of zero is unknown.
func (p *progress) show(done, total int64, what string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.drawn {
		p.draw(done, total, what)
		return
	}
	now := p.now()
	if now.Sub(p.line) < p.interval {
		return
	}
	p.line = now
	text := p.operation + ": " + p.steps(done)
	if total > 0 {
		text += " of " + p.steps(total)
	}
	if elapsed := now.Sub(p.start); done > 0 {
		rate := float64(done) / elapsed.Seconds()
		if p.bytes {
			text += ", " + present.Bytes(int64(rate)) + " a second"
		} else {
			text += fmt.Sprintf(", %.3g a second", rate)
		}
		if total > done {
			left := time.Duration(float64(elapsed) / float64(done) * float64(total-done))
			text += fmt.Sprintf(", about %s left", left.Round(time.Second))
		}
	}
	if what != "" {
		text += ": " + what
	}
	fmt.Fprintln(p.w, text)
}

// steps formats a number of steps.
func (p *progress) steps(n int64) string {
	if p.bytes {
		return present.Bytes(n)
	}
	return present.Count(n)
}

// draw is called with mu held.
func (p *progress) draw(done, total int64, what string) {
	if total == 0 {
		total = -1 // a spinner
	}
	if what == "" {
		what = p.operation
	}
	if p.bar == nil {
		p.bar = progressbar.NewOptions64(total, progressbar.OptionSetWriter(p.w), progressbar.OptionClearOnFinish(),
			progressbar.OptionSetWidth(30), progressbar.OptionShowBytes(p.bytes), progressbar.OptionShowIts(), progressbar.OptionShowCount(),
			progressbar.OptionThrottle(100*time.Millisecond), progressbar.OptionSetDescription(what))
		p.what = what
	}
	if p.bar.GetMax64() != total { // fewer steps if a contender is missing
		p.bar.ChangeMax64(total)
	}
	if what != p.what {
		p.bar.Describe(what)
		p.what = what
	}
	_ = p.bar.Set64(done) // the bar is optional
}

// end removes the bar.
func (p *progress) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.bar != nil {
		_ = p.bar.Finish() // the bar is optional
	}
}
