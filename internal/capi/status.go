package capi

import (
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/store"
)

// Status is a kvl_status of kvlane.h. Zero is success.
type Status int32

// Statuses. Go never returns Forked: the C code returns it in a child of fork().
const (
	OK           Status = 0
	Pending      Status = 1
	Invalid      Status = -1
	NotFound     Status = -2
	Exists       Status = -3
	NotSupported Status = -4
	Busy         Status = -5
	NoMemory     Status = -6
	NoSpace      Status = -7
	ReadOnly     Status = -8
	Corrupt      Status = -9
	Mismatch     Status = -10
	Canceled     Status = -11
	Expired      Status = -12
	Closed       Status = -13
	Broken       Status = -14
	Forked       Status = -15
	Failed       Status = -16
)

// errPending is the cause of contexts whose timeout has passed.
var errPending = errors.New("the timeout passed")

// sentinels maps errors to statuses. The first match is used.
var sentinels = []struct {
	err    error
	status Status
}{
	{errPending, Pending},
	{errdefs.ErrInvalid, Invalid},
	{errdefs.ErrClosed, Closed},
	{errdefs.ErrLost, Broken},
	{errdefs.ErrCanceled, Canceled},
	{errdefs.ErrExpired, Expired},
	{errdefs.ErrBroken, Broken},
	{errdefs.ErrCorrupt, Corrupt},
	{errdefs.ErrMismatch, Mismatch},
	{errdefs.ErrNotSupported, NotSupported},
	{errdefs.ErrNoMemory, NoMemory},
	{errdefs.ErrNoSpace, NoSpace},
	{errdefs.ErrReadOnly, ReadOnly},
	{errdefs.ErrBusy, Busy},
	{errdefs.ErrExists, Exists},
	{errdefs.ErrNotFound, NotFound},
}

// StatusOf returns the status for an error.
func StatusOf(err error) Status {
	if err == nil {
		return OK
	}
	for _, s := range sentinels {
		if errors.Is(err, s.err) {
			return s.status
		}
	}
	return Failed
}

// Text returns the text of an error and its remedy, on one line and without zero bytes.
func Text(err error) string {
	text := err.Error()
	if remedy := errdefs.Remedy(err); remedy != "" {
		text += "; " + remedy
	}
	return strings.NewReplacer("\n", "; ", "\x00", " ").Replace(text)
}

// Guard calls f and converts a panic, which is a bug in kvlane, to an error with the status Failed.
func Guard(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("this is a bug in kvlane: %v, at %s", p, where())
		}
	}()
	return f()
}

// where returns the source positions in kvlane that led to a panic, innermost first.
func where() string {
	var at []string
	calls := make([]uintptr, 32)
	frames := runtime.CallersFrames(calls[:runtime.Callers(2, calls)])
	for more := true; more && len(at) < 8; {
		var f runtime.Frame
		if f, more = frames.Next(); strings.Contains(f.Function, "kvlane") {
			at = append(at, fmt.Sprintf("%s:%d", filepath.Base(f.File), f.Line))
		}
	}
	return strings.Join(at, ", ")
}

// invalid returns an error that wraps ErrInvalid.
func invalid(format string, args ...any) error {
	return fmt.Errorf(format+": %w", append(args, errdefs.ErrInvalid)...)
}

// ofBlocks returns the first error of blocks with the number of further errors. Results returns the
// status of each block.
func ofBlocks(errs []error) error {
	var first error
	n := 0
	for _, err := range errs {
		if err == nil {
			continue
		}
		if n++; first == nil {
			first = err
		}
	}
	if n > 1 {
		return fmt.Errorf("%d blocks failed, the first: %w", n, first)
	}
	return first
}

// ofJoined applies ofBlocks to joined block errors. It returns other errors unchanged.
func ofJoined(err error) error {
	var b *store.BlockError
	if j, ok := err.(interface{ Unwrap() []error }); ok && errors.As(err, &b) {
		return ofBlocks(j.Unwrap())
	}
	return err
}
