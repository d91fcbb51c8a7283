// Package nap sleeps for less than a millisecond. The runtime's timers sleep a millisecond where the process is otherwise idle
// (https://go.dev/issue/44343).
package nap

import (
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
