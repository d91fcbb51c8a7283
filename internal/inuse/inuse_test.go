package inuse

import (
	"context"
	"testing"
)

func TestEndedUsesAreRemoved(t *testing.T) {
	var s Set
	for range 200 {
		u, err := s.Begin()
		if err != nil {
			t.Fatal(err)
		}
		u.Started(func(context.Context) error { return nil })
	}
	if n := len(s.uses); n > 100 {
		t.Errorf("%d uses that have ended are kept", n)
	}
}
