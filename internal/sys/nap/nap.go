// Package nap sleeps for less than a millisecond, and calculates the length of sleeps. The
// runtime's timers sleep for a millisecond if the process is otherwise idle
// (https://go.dev/issue/44343).
package nap

import (
	"math"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// Sleep sleeps by a system call, without the 50 us that the kernel may add to a thread's sleep by
// default. It blocks a thread, so it is for short sleeps. A signal may end it early.
func Sleep(d time.Duration) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	// Errors only make the sleep longer or, by a signal, shorter.
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0)
	ts := unix.NsecToTimespec(int64(d))
	_ = unix.Nanosleep(&ts, nil)
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 0, 0, 0, 0) // the thread's default
}

// Parameters of polling. Copies of a few blocks take 10 to 50 us, so a wait first polls that long
// without a pause. Then it sleeps for a part of the time waited so far, which bounds the relative
// delay, and for at most maxPause, which uses about a hundredth of a core. A sleep in a virtual
// machine ends tens of microseconds late, a twentieth of a copy of 40 MB. So a wait does not sleep
// around the expected end.
const (
	Spin     = 50 * time.Microsecond
	part     = 32
	maxPause = 200 * time.Microsecond
	nearPart = 16
	maxNear  = 250 * time.Microsecond
)

// Unexpected is the remaining time of an event without a prediction.
const Unexpected = time.Duration(math.MinInt64)

// Pause returns the duration of the sleep before the next poll. waited is the time so far, and left
// the predicted remaining time, which may be negative. Zero means no sleep.
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
