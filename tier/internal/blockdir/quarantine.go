package blockdir

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/internal/dirfs"
)

// Quarantined lists the quarantine. If a file has the folder's name, it lists nothing: that file is
// foreign.
func Quarantined(d dirfs.Dir) ([]string, error) {
	names, err := Names(d, Quarantine)
	if err != nil {
		if info, serr := d.Stat(Quarantine); serr == nil && !info.Type.IsDir() {
			return nil, nil
		}
	}
	return names, err
}

// TrimQuarantine removes the oldest files until at most most are left. It ignores files not made by
// kvlane.
func TrimQuarantine(d dirfs.Dir, most int) error {
	all, err := Names(d, Quarantine)
	if err != nil {
		return err
	}
	var ours []string
	for _, n := range all {
		if isQuarantineName(n) {
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

// isQuarantineName reports whether n has the form of QuarantineName.
func isQuarantineName(n string) bool {
	of, ours := parseQuarantined(n)
	_, err := block.ParseKey(of)
	return ours && err == nil
}

// parseQuarantined returns the part of a quarantined file's name after the time. It returns false
// if the name does not begin with a time.
func parseQuarantined(n string) (of string, ours bool) {
	const digits = 16
	if len(n) < digits+1 || n[digits] != '-' {
		return "", false
	}
	_, err := strconv.ParseUint(n[:digits], 16, 64)
	return n[digits+1:], err == nil
}

// QuarantineName returns the name of an image of key in quarantine. It begins with the time in a
// fixed number of digits, so that names sort by time.
func QuarantineName(now time.Time, key block.Key) string {
	return fmt.Sprintf("%016x-%s", uint64(now.UnixNano()), key)
}
