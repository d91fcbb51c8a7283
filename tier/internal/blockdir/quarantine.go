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
	_, of, ours := setAsideAt(n)
	_, err := block.ParseKey(of)
	return ours && err == nil
}

// setAsideAt splits a name below Quarantine into the time, in nanoseconds since 1970, and what was set aside. False: it is no such name.
func setAsideAt(n string) (nanos uint64, of string, ours bool) {
	const digits = 16
	if len(n) < digits+1 || n[digits] != '-' {
		return 0, "", false
	}
	nanos, err := strconv.ParseUint(n[:digits], 16, 64)
	return nanos, n[digits+1:], err == nil
}

// NoteSetAside gives the findings about blocks that were set aside from a time on the place where each is now, below root.
func NoteSetAside(d dirfs.Dir, root string, from time.Time, found []Finding) error {
	all, err := Names(d, Quarantine)
	if err != nil {
		return err
	}
	where := map[string]string{}
	for _, n := range all {
		if nanos, of, ours := setAsideAt(n); ours && nanos >= uint64(from.UnixNano()) {
			where[of] = root + "/" + Quarantine + "/" + n
		}
	}
	for i := range found {
		if f := &found[i]; f.Key != (block.Key{}) && f.MovedTo == "" {
			f.MovedTo = where[f.Key.String()]
		}
	}
	return nil
}

// QuarantineName returns the name, below Quarantine, of an image of key that failed its check. Names begin with the time, in digits of
// constant number, so that the oldest comes first.
func QuarantineName(now time.Time, key block.Key) string {
	return fmt.Sprintf("%016x-%s", uint64(now.UnixNano()), key)
}
