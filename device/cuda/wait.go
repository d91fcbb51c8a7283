package cuda

import (
	"context"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// How a wait polls. Copies of a few blocks take 10 to 50 us, so for that long it asks without a pause, letting other
// goroutines run in between. Afterwards it sleeps for a part of the time waited so far, which bounds how late it can be
// in proportion, and at most maxNap, which costs about a hundredth of a core.
const (
	spin    = 50 * time.Microsecond
	napPart = 32
	maxNap  = 200 * time.Microsecond
)

// poller is what can be waited for. An interface and not a function, so that waiting allocates nothing.
type poller interface {
	poll() (done bool, err error)
}

// await polls p until it is done, fails, or ctx ends; then it returns the context's cause. What is done already is never
// reported as canceled.
func await(ctx context.Context, p poller) error {
	start := time.Now()
	for {
		done, err := p.poll()
		if done || err != nil {
			return err
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		waited := time.Since(start)
		if waited < spin {
			runtime.Gosched()
			continue
		}
		nap(min(waited/napPart, maxNap))
	}
}

// nap sleeps by a system call, as the runtime's timers sleep a millisecond where the process is otherwise idle
// (https://go.dev/issue/44343), and without the 50 us that the kernel may add to a thread's sleep by default.
func nap(d time.Duration) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	// Neither call can do more harm than a nap that is longer or, by a signal, shorter than asked for.
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0)
	ts := unix.NsecToTimespec(int64(d))
	_ = unix.Nanosleep(&ts, nil)
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 0, 0, 0, 0) // the thread's default
}
