package testkit

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/kvlane/kvlane/internal/leak"
)

// maxCleanupWait is the maximum time for which Main waits until resources closed at the end of the
// tests are released.
const maxCleanupWait = 2 * time.Second

// Main runs the tests and exits with their status. If goroutines, file descriptors or resources of
// package leak remain, it prints them and exits with status 1. o are options of goleak, for
// goroutines of libraries that never end.
func Main(m *testing.M, o ...goleak.Option) {
	os.Exit(run(m.Run, o...))
}

func run(tests func() int, o ...goleak.Option) int {
	// The Go poller opens descriptors (epoll, eventfd) when the first file or socket is watched,
	// and keeps them. Therefore descriptors are compared by their targets, and those of the poller
	// are ignored.
	before, errBefore := descriptors()
	code := tests()
	err := errors.Join(errBefore, goroutines(o), files(before), counted())
	if err == nil {
		return code
	}
	fmt.Fprintf(os.Stderr, "left behind by the tests:\n%v\n", err)
	return max(code, 1)
}

func goroutines(o []goleak.Option) error {
	o = append([]goleak.Option{goleak.IgnoreTopFunction("os/signal.signal_recv"), goleak.IgnoreTopFunction("os/signal.loop")}, o...)
	if err := goleak.Find(o...); err != nil {
		return fmt.Errorf("goroutines: %w", err)
	}
	return nil
}

func files(before map[string]string) error {
	var left []string
	deadline := time.Now().Add(maxCleanupWait)
	for {
		after, err := descriptors()
		if err != nil {
			return err
		}
		left = left[:0]
		for fd, what := range after {
			if before[fd] != what {
				left = append(left, fd+" -> "+what)
			}
		}
		if len(left) == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			slices.Sort(left)
			return fmt.Errorf("file descriptors: %s", strings.Join(left, ", "))
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// descriptors returns the targets of all open descriptors of the process. Without /proc it returns
// nil, and descriptors are not checked.
func descriptors() (map[string]string, error) {
	const dir = "/proc/self/fd"
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list file descriptors: %w", err)
	}
	fds := make(map[string]string, len(entries))
	for _, e := range entries {
		what, err := os.Readlink(dir + "/" + e.Name())
		if err != nil {
			continue // the descriptor of the directory listing is closed by now
		}
		if !ofPoller(what) {
			fds[e.Name()] = what
		}
	}
	return fds, nil
}

func ofPoller(what string) bool {
	return strings.HasPrefix(what, "anon_inode:[event")
}

func counted() error {
	live := leak.Live()
	var errs []error
	for _, k := range slices.Sorted(maps.Keys(live)) {
		errs = append(errs, fmt.Errorf("%s: %d", k, live[k]))
	}
	return errors.Join(errs...)
}
