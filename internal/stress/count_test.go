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

// tally counts by kind, and keeps the longest wait of each kind. Safe for concurrent use.
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

// shown are the counts without which a run shows nothing.
var shown = []string{"blocks loaded", "blocks durable", "blocks durable and checked"}

// shows reports whether all of shown were counted.
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

// reasons are what may be the matter with a request here, by the name to count it under; the first decides.
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
	// What the parent does between two steps of a worker.
	{"vanished", fs.ErrNotExist},
	{"replaced", syscall.EISDIR},
	{"replaced", syscall.ENOTEMPTY},
	{"replaced", dirfs.ErrIrregular},
}

// reason names why a request failed, or is empty where nothing that is done here explains it.
func reason(err error) string {
	for _, r := range reasons {
		if errors.Is(err, r.err) {
			return r.name
		}
	}
	return ""
}
