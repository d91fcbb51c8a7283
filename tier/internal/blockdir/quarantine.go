package blockdir

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/internal/dirfs"
)

// TrimQuarantine removes the oldest files until most are left. What it cannot remove, and what is not kvlane's, it leaves.
func TrimQuarantine(d dirfs.Dir, most int) error {
	all, err := Names(d, Quarantine)
	if err != nil {
		return err
	}
	var ours []string
	for _, n := range all {
		if quarantineName(n) {
			ours = append(ours, n)
		}
	}
	var errs []error
	for _, n := range ours[:max(0, len(ours)-most)] {
		if err := Remove(d, Quarantine+"/"+n); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// quarantineName says whether a name is one that QuarantineName gives.
func quarantineName(n string) bool {
	const digits = 16
	if len(n) < digits+1 || n[digits] != '-' {
		return false
	}
	_, err := strconv.ParseUint(n[:digits], 16, 64)
	if err != nil {
		return false
	}
	_, err = block.ParseKey(n[digits+1:])
	return err == nil
}

// QuarantineName returns the name, below Quarantine, of an image of key that failed its check. Names begin with the time, in digits of
// constant number, so that the oldest comes first.
func QuarantineName(now time.Time, key block.Key) string {
	return fmt.Sprintf("%016x-%s", uint64(now.UnixNano()), key)
}
