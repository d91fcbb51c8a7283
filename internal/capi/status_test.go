package capi_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/capi"
)

// Each sentinel has its own status, also if it is wrapped.
func TestSentinelsHaveStatuses(t *testing.T) {
	seen := make(map[capi.Status]error)
	for _, err := range []error{
		errdefs.ErrInvalid, errdefs.ErrNotFound, errdefs.ErrExists, errdefs.ErrNotSupported, errdefs.ErrBusy, errdefs.ErrNoMemory, errdefs.ErrNoSpace,
		errdefs.ErrReadOnly, errdefs.ErrCorrupt, errdefs.ErrMismatch, errdefs.ErrCanceled, errdefs.ErrExpired, errdefs.ErrClosed, errdefs.ErrBroken,
	} {
		s := capi.StatusOf(fmt.Errorf("do a thing: %w", err))
		if s >= 0 || s == capi.Failed || seen[s] != nil {
			t.Errorf("%v is %d, as is %v", err, s, seen[s])
		}
		seen[s] = err
	}
	if s := capi.StatusOf(errors.New("anything")); s != capi.Failed {
		t.Errorf("anything else is %d", s)
	}
	if s := capi.StatusOf(nil); s != capi.OK {
		t.Errorf("status of a nil error: %d", s)
	}
}

// A panic becomes an error with its source line.
func TestPanicsAreErrors(t *testing.T) {
	err := capi.Guard(func() error {
		none := make([]int, 0)
		return fmt.Errorf("%d", none[len(none)])
	})
	if capi.StatusOf(err) != capi.Failed || !strings.Contains(err.Error(), "status_test.go:") || !strings.Contains(err.Error(), "bug in kvlane") {
		t.Errorf("%v", err)
	}
	want(t, "a panic with a sentinel", capi.Guard(func() error { panic(errdefs.ErrNotFound) }), capi.Failed)
	want(t, "an error", capi.Guard(func() error { return errdefs.ErrNotFound }), capi.NotFound)
	if got := capi.Text(errors.Join(errors.New("a\x00b"), errors.New("c"))); got != "a b; c" {
		t.Errorf("words of two errors: %q", got)
	}
}
