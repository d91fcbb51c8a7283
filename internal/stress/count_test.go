package stress

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/dirfs"
	"github.com/kvlane/kvlane/internal/fault"
)

// tally counts events by kind, and records the longest wait of each kind. It is safe for concurrent
// use.
type tally struct {
	mu    sync.Mutex
	Count map[string]int64
	Waits map[string]time.Duration
}

func newTally() *tally {
	return &tally{Count: make(map[string]int64), Waits: make(map[string]time.Duration)}
}

func (t *tally) add(kind string, n int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.Count[kind] += n
}

func (t *tally) waited(kind string, d time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.Waits[kind] = max(t.Waits[kind], d)
}

func (t *tally) merge(o *tally) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for k, n := range o.Count {
		t.Count[k] += n
	}
	for k, d := range o.Waits {
		t.Waits[k] = max(t.Waits[k], d)
	}
}

// shown are the counts that must not be zero. Otherwise the run tested nothing.
var shown = []string{"blocks loaded", "blocks durable", "blocks durable and checked", "blocks removed"}

// shows reports whether no count of shown is zero.
func (t *tally) shows() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return !slices.ContainsFunc(shown, func(k string) bool { return t.Count[k] == 0 })
}

// String lists the counts, one line for each first word, and the waits.
func (t *tally) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	var b strings.Builder
	last := ""
	for _, k := range slices.Sorted(maps.Keys(t.Count)) {
		group, rest, _ := strings.Cut(k, " ")
		if group != last {
			fmt.Fprintf(&b, "\n  %s:", group)
			last = group
		}
		fmt.Fprintf(&b, " %s %d,", rest, t.Count[k])
	}
	b.WriteString("\n  longest:")
	for _, k := range slices.Sorted(maps.Keys(t.Waits)) {
		fmt.Fprintf(&b, " %s %v,", k, t.Waits[k].Round(time.Millisecond))
	}
	return b.String()
}

// reasons are the accepted errors of a request and the name under which they are counted. The first
// match applies.
var reasons = []struct {
	name string
	err  error
}{
	{"canceled", errdefs.ErrCanceled},
	{"closed", errdefs.ErrClosed},
	{"injected", fault.ErrInjected},
	{"injected", errVeto},
	{"not found", errdefs.ErrNotFound},
	{"corrupt", errdefs.ErrCorrupt},
	{"expired", errdefs.ErrExpired},
	{"no space", errdefs.ErrNoSpace},
	{"no space", syscall.ENOSPC},
	{"no memory", errdefs.ErrNoMemory},
	{"broken", errdefs.ErrBroken},
	{"busy", errdefs.ErrBusy},
	{"exists", errdefs.ErrExists},
	{"out of time", context.DeadlineExceeded},
	{"out of time", context.Canceled},
	// Changes that the parent process makes between two steps of a worker.
	{"vanished", fs.ErrNotExist},
	{"replaced", syscall.EISDIR},
	{"replaced", syscall.ENOTEMPTY},
	{"replaced", dirfs.ErrIrregular},
}

// reason returns the name of an accepted error, or "" if the error is unexpected.
func reason(err error) string {
	for _, r := range reasons {
		if errors.Is(err, r.err) {
			return r.name
		}
	}
	return ""
}
