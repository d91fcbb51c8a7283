// Package nap sleeps for less than a millisecond, and says for how long. The runtime's timers sleep a millisecond where the process is otherwise idle
// (https://go.dev/issue/44343).
package nap

import (
	"math"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// Sleep sleeps by a system call, and without the 50 us that the kernel may add to a thread's sleep by default. It holds a
// thread, so it is for naps. A signal may end it early.
func Sleep(d time.Duration) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	// Neither call can do more harm than a nap that is longer or, by a signal, shorter than asked for.
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0)
	ts := unix.NsecToTimespec(int64(d))
	_ = unix.Nanosleep(&ts, nil)
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 0, 0, 0, 0) // the thread's default
}

// How a wait polls. Copies of a few blocks take 10 to 50 us, so for that long one asks without a pause. Afterwards one sleeps
// for a part of the time waited so far, which bounds how late one can be in proportion, and at most maxPause, which costs
// about a hundredth of a core. A nap in a virtual machine ends tens of microseconds late, a twentieth of a copy of 40 MB: so
// around the time at which the end is expected one does not sleep either.
const (
	Spin     = 50 * time.Microsecond
	part     = 32
	maxPause = 200 * time.Microsecond
	nearPart = 16
	maxNear  = 250 * time.Microsecond
)

// Unexpected is how long it takes until something of which nobody knows when it will be.
const Unexpected = time.Duration(math.MinInt64)

// Pause returns for how long to sleep before the next look at something that was waited for so long, and is expected in
// left, which is negative afterwards; zero is not at all.
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
