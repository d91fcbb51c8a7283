package blockdir

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/internal/dirfs"
)

// Quarantined lists the quarantine. One that is no folder has nothing: it is itself foreign.
func Quarantined(d dirfs.Dir) ([]string, error) {
	names, err := Names(d, Quarantine)
	if err != nil {
		if info, serr := d.Stat(Quarantine); serr == nil && !info.Type.IsDir() {
			return nil, nil
		}
	}
	return names, err
}

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
	of, ours := setAsideAt(n)
	_, err := block.ParseKey(of)
	return ours && err == nil
}

// setAsideAt returns what was set aside under a name below Quarantine, which begins with the time. False: it is no such name.
func setAsideAt(n string) (of string, ours bool) {
	const digits = 16
	if len(n) < digits+1 || n[digits] != '-' {
		return "", false
	}
	_, err := strconv.ParseUint(n[:digits], 16, 64)
	return n[digits+1:], err == nil
}

// QuarantineName returns the name, below Quarantine, of an image of key that failed its check. Names begin with the time, in digits of
// constant number, so that the oldest comes first.
func QuarantineName(now time.Time, key block.Key) string {
	return fmt.Sprintf("%016x-%s", uint64(now.UnixNano()), key)
}
