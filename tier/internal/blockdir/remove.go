package blockdir

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/dirfs"
	"github.com/kvlane/kvlane/tier"
)

// Selection selects blocks of a directory. A block must match every field that is set. The zero
// value selects all blocks.
type Selection struct {
	Keys     []block.Key  // nil: every key
	Identity block.Digest // of the block's page group; zero: every identity
	Before   time.Time    // later blocks stay, by Entry.Modified; zero: every time
}

// Matcher returns a function that reports whether a block of the directory with the marker m is
// selected.
func (s *Selection) Matcher(m *Marker) func(e *Entry) bool {
	keys := make(map[block.Key]bool, len(s.Keys))
	for _, key := range s.Keys {
		keys[key] = true
	}
	return func(e *Entry) bool {
		identity := s.Identity == block.Digest{} || e.Group >= 0 && m.Groups[e.Group].Digest == s.Identity
		return identity && (s.Keys == nil || keys[e.Key]) && (s.Before.IsZero() || e.Modified.Before(s.Before))
	}
}

// Cause returns the cause of removals by the selection.
func (s *Selection) Cause() tier.Cause {
	if s.Keys == nil && !s.Before.IsZero() {
		return tier.CauseAge
	}
	return tier.CauseRequest
}

// ErrPinned is returned for the removal of a pinned block.
var ErrPinned = fmt.Errorf("pinned, and kept until it is unpinned: %w", errdefs.ErrBusy)

// Staying returns the errors of Removed.Left for blocks that stay because they are in use or
// pinned.
func Staying(inUse, pinned int) (errs []error) {
	if inUse > 0 {
		errs = append(errs, fmt.Errorf("%d blocks are in use: %w", inUse, errdefs.ErrBusy))
	}
	if pinned > 0 {
		errs = append(errs, fmt.Errorf("%d blocks: %w", pinned, ErrPinned))
	}
	return errs
}

// Holder describes the process of this host that holds the lock of a file: "process PID (NAME)". It
// returns "another process" if the system does not name it.
func Holder(d dirfs.Dir, name string) string {
	const unknown = "another process"
	info, err := d.Stat(name)
	if err != nil {
		return unknown
	}
	locks, err := os.ReadFile("/proc/locks")
	if err != nil {
		return unknown
	}
	id := fmt.Sprintf("%02x:%02x:%d", unix.Major(info.Device), unix.Minor(info.Device), info.Inode)
	for line := range strings.Lines(string(locks)) {
		f := strings.Fields(line)
		if len(f) < 6 || f[1] != "FLOCK" || f[5] != id {
			continue
		}
		pid, err := strconv.Atoi(f[4])
		if err != nil || pid <= 0 {
			return unknown
		}
		comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
		if err != nil {
			return fmt.Sprintf("process %d", pid)
		}
		return fmt.Sprintf("process %d (%s)", pid, strings.TrimSpace(string(comm)))
	}
	return unknown
}
