package stream_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream"
)

func TestMain(m *testing.M) { testkit.Main(m) }

var _ mem.Dependency = (*stream.Ticket)(nil)

func TestTicket(t *testing.T) {
	cause := errors.New("it went wrong")
	canceled := 0
	ticket := stream.NewTicket(7, func() { canceled++ })
	if ticket.ID() != 7 || ticket.Err() != nil || ticket.Completion() != (stream.Completion{}) {
		t.Errorf("unresolved: %d, %v, %+v", ticket.ID(), ticket.Err(), ticket.Completion())
	}
	select {
	case <-ticket.Done():
		t.Error("done before it resolved")
	default:
	}
	ticket.Cancel()
	ticket.Cancel()
	if canceled != 2 {
		t.Errorf("%d cancels reached the stream", canceled)
	}
	want := stream.Completion{Path: stream.PathKernel, Reason: "why not", Bytes: 9, Pieces: 3}
	ticket.Resolve(want, cause)
	if err := ticket.Wait(t.Context()); !errors.Is(err, cause) || !errors.Is(ticket.Err(), cause) {
		t.Errorf("wait %v, err %v", err, ticket.Err())
	}
	if ticket.Completion() != want {
		t.Errorf("completion %+v", ticket.Completion())
	}
	defer func() {
		if recover() == nil {
			t.Error("a ticket resolved twice")
		}
	}()
	ticket.Resolve(want, nil)
}

// TestWaitPrefersTheVerdict checks that Wait with an ended context returns the result of a resolved
// ticket.
func TestWaitPrefersTheVerdict(t *testing.T) {
	ticket := stream.NewTicket(1, nil)
	ticket.Resolve(stream.Completion{}, nil)
	ticket.Cancel() // a stream that cannot cancel
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := ticket.Wait(ctx); err != nil {
		t.Errorf("wait: %v", err)
	}
}

func TestWaitGivesUpWithTheCause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ticket := stream.NewTicket(1, nil)
		cause := errors.New("a minute is enough")
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Minute, cause)
		defer cancel()
		if err := ticket.Wait(ctx); !errors.Is(err, cause) {
			t.Errorf("wait: %v", err)
		}
		if ticket.Err() != nil {
			t.Errorf("giving up resolved the ticket: %v", ticket.Err())
		}
		go ticket.Resolve(stream.Completion{}, nil)
		if err := ticket.Wait(t.Context()); err != nil {
			t.Errorf("second wait: %v", err)
		}
	})
}

func TestPathNames(t *testing.T) {
	names := map[stream.Path]string{
		stream.PathNone: "none", stream.PathCopyEngine: "copy-engine",
		stream.PathKernel: "kernel", stream.PathPosix: "posix", 99: "path(99)",
	}
	for p, want := range names {
		if p.String() != want {
			t.Errorf("path %d is %q, want %q", uint8(p), p, want)
		}
	}
	for _, p := range stream.Paths() {
		if got, err := stream.ParsePath(p.String()); err != nil || got != p || p.MovedBy() == stream.MovedByNothing {
			t.Errorf("path %d is called %q, which is %d (%v), and moved by %d: it is not registered", uint8(p), p, got, err, p.MovedBy())
		}
	}
}
