package renew_test

import (
	"context"
	"errors"
	"testing"

	"github.com/jonboulle/clockwork"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream"
	"github.com/kvlane/kvlane/stream/renew"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// fakeStream resolves each batch at once, or fails as its fields demand.
type fakeStream struct {
	stream.Stream
	refusal   error // error of Submit
	failures  int   // number of failures of Close
	submitted int
	closed    bool
}

func (f *fakeStream) Submit(context.Context, *mem.Batch) (*stream.Ticket, error) {
	if f.refusal != nil {
		return nil, f.refusal
	}
	f.submitted++
	t := stream.NewTicket(uint64(f.submitted), nil)
	t.Resolve(stream.Completion{}, nil)
	return t, nil
}

func (f *fakeStream) Close(context.Context) error {
	if f.failures > 0 {
		f.failures--
		return errdefs.ErrBusy
	}
	f.closed = true
	return nil
}

// open returns a Stream over streams, in this order, the number of retries, and the causes for
// which streams were reopened.
func open(streams ...*fakeStream) (s *renew.Stream, retries *int, causes *[]error) {
	retries, causes = new(int), new([]error)
	s = renew.New(renew.Options{
		Name: "load", Clock: clockwork.NewFakeClock(),
		Open: func() (stream.Stream, error) {
			if len(streams) == 0 {
				return nil, errdefs.ErrNoSpace
			}
			next := streams[0]
			streams = streams[1:]
			return next, nil
		},
		Retried:  func() { *retries++ },
		Reopened: func(cause error) { *causes = append(*causes, cause) },
	})
	return s, retries, causes
}

func TestBrokenStreamIsReplaced(t *testing.T) {
	broken, good := &fakeStream{refusal: errdefs.ErrBroken}, &fakeStream{}
	s, retries, causes := open(broken, good)
	ticket, err := s.Submit(t.Context(), &mem.Batch{})
	if err != nil || !ticket.Poll() {
		t.Fatalf("submit: %v", err)
	}
	s.Resolved()
	if good.submitted != 1 || *retries != 1 || len(*causes) != 1 || !errors.Is((*causes)[0], errdefs.ErrBroken) {
		t.Errorf("%d batches, %d retries, causes %v", good.submitted, *retries, *causes)
	}
	if reported, err := s.Close(t.Context()); reported != nil || err != nil {
		t.Errorf("close: %v, %v", reported, err)
	}
	if !broken.closed || !good.closed {
		t.Errorf("closed: the broken stream %v, the second stream %v", broken.closed, good.closed)
	}
}

func TestRefusalOfAWorkingStreamIsReturned(t *testing.T) {
	st := &fakeStream{refusal: errdefs.ErrInvalid}
	s, retries, _ := open(st)
	if _, err := s.Submit(t.Context(), &mem.Batch{}); !errors.Is(err, errdefs.ErrInvalid) || *retries != 0 {
		t.Errorf("submit: %v after %d retries", err, *retries)
	}
	if _, err := s.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestCloseSeparatesReportedFromOpenErrors(t *testing.T) {
	st := &fakeStream{failures: 1}
	s, _, _ := open(st)
	if err := s.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	if reported, err := s.Close(t.Context()); !errors.Is(reported, errdefs.ErrBusy) || err != nil || !st.closed {
		t.Errorf("close: reported %v, err %v, closed %v", reported, err, st.closed)
	}

	st = &fakeStream{failures: 2}
	s, _, _ = open(st)
	if err := s.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Close(t.Context()); !errors.Is(err, errdefs.ErrBusy) || st.closed {
		t.Errorf("close: %v, closed %v", err, st.closed)
	}
	if reported, err := s.Close(t.Context()); reported != nil || err != nil || !st.closed {
		t.Errorf("second close: reported %v, err %v, closed %v", reported, err, st.closed)
	}
}
