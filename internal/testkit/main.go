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

// maxCleanupWait is the longest time that Main waits for resources that were closed at the end of
// the tests.
const maxCleanupWait = 2 * time.Second

// Main runs the tests and exits the process with their status. It prints leaked goroutines, file
// descriptors and resources of package leak, and then exits with 1. Options are of goleak, for
// permanent goroutines of libraries.
func Main(m *testing.M, o ...goleak.Option) {
	os.Exit(run(m.Run, o...))
}

func run(tests func() int, o ...goleak.Option) int {
	// The poller opens descriptors (epoll, eventfd) for the first file or socket that it watches,
	// and keeps them. Descriptors are therefore compared by their targets, without those of the
	// poller.
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

// descriptors returns the target of every open descriptor of the process. Without /proc it returns
// nothing, and there is no check.
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
			continue // the descriptor of the directory listing, closed since
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
