// Package nap provides short sleeps and the durations of sleeps while polling. Timers of the Go
// runtime take at least a millisecond if the process is otherwise idle
// (https://go.dev/issue/44343).
package nap

import (
	"math"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// Sleep sleeps with a system call. It removes the slack of 50 us that the kernel adds by default.
// It blocks an OS thread, so use it for short sleeps only. A signal may end it early.
func Sleep(d time.Duration) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	// Errors are ignored: they only make the sleep longer or shorter.
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0)
	ts := unix.NsecToTimespec(int64(d))
	_ = unix.Nanosleep(&ts, nil)
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 0, 0, 0, 0) // the thread's default
}

// Parameters of polling. Copies of a few blocks take 10 to 50 us, so a wait first polls for Spin
// without sleeping. Then it sleeps for a fraction of the time waited so far, which limits the
// relative delay, and for at most maxPause, at which polling uses about 1% of a core. In a virtual
// machine a sleep may end tens of microseconds late, so a wait does not sleep close to the
// predicted end.
const (
	Spin     = 50 * time.Microsecond
	part     = 32
	maxPause = 200 * time.Microsecond
	nearPart = 16
	maxNear  = 250 * time.Microsecond
)

// Unexpected is the remaining time to pass to Pause if there is no prediction.
const Unexpected = time.Duration(math.MinInt64)

// Pause returns the duration to sleep before the next poll, or zero. waited is the time waited so
// far. left is the predicted remaining time, which may be negative.
func Pause(waited, left time.Duration) time.Duration {
	if waited < Spin {
		return 0
	}
	pause := min(waited/part, maxPause)
	if left == Unexpected {
		return pause
	}
	near := min(max((waited+left)/nearPart, Spin), maxNear)
	switch {
	case left < -near:
		return pause
	case left <= near:
		return 0
	}
	return min(pause, left-near)
}
