package metadata_test

import (
	"context"
	"errors"
	"testing"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/metadata"
)

// oneList is a scheme with one list.
type oneList struct{ opened metadata.OpenedMembers }

func (s oneList) Check(url string) error {
	if url != "one://list" {
		return errdefs.ErrInvalid
	}
	return nil
}

func (s oneList) Open(context.Context, string) (metadata.OpenedMembers, error) { return s.opened, nil }

func TestOpenMembers(t *testing.T) {
	list, err := metadata.OpenMembers(t.Context(), "b:2=3,a:1")
	if err != nil {
		t.Fatal(err)
	}
	if got := text(t, list); got != "a:1,b:2=3" {
		t.Error(got)
	}
	if err := list.Close(); err != nil {
		t.Error(err)
	}
	with := metadata.WithScheme(t.Context(), "one", oneList{list})
	with = metadata.WithScheme(with, "two", oneList{})
	if got, err := metadata.OpenMembers(with, "one://list"); err != nil || text(t, got) != "a:1,b:2=3" {
		t.Errorf("a scheme's list: %v, %v", got, err)
	}
	for _, c := range []struct {
		text string
		want error
	}{
		{"one://other", errdefs.ErrInvalid},
		{"three://list", errdefs.ErrNotSupported},
		{"a", errdefs.ErrInvalid},
		{"dns+srv://kv.example", errdefs.ErrInvalid},
	} {
		if _, err := metadata.OpenMembers(with, c.text); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.text, err, c.want)
		}
	}
	// The scheme is that of the context.
	if _, err := metadata.OpenMembers(t.Context(), "one://list"); !errors.Is(err, errdefs.ErrNotSupported) {
		t.Errorf("a scheme of another context: %v", err)
	}
}
