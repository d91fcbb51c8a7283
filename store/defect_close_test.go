package store_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/store"
	"github.com/kvlane/kvlane/stream"
)

// reluctantStream is a stream whose Close fails the first refusals times.
type reluctantStream struct {
	stream.Stream
	refusals, closed *atomic.Int64
}

var errReluctant = errors.New("not yet")

func (s reluctantStream) Close(ctx context.Context) error {
	if s.refusals.Add(-1) >= 0 {
		return errReluctant
	}
	err := s.Stream.Close(ctx)
	if err == nil {
		s.closed.Add(1)
	}
	return err
}

// If the first Close of a broken stream failed, the stream stayed open with its device memory and
// queues until the store was closed.
func TestDefectBrokenStreamThatDoesNotCloseAtOnceStaysOpen(t *testing.T) {
	t.Parallel()
	var refusals, closed atomic.Int64
	r := newRig(t, rigOptions{wrapLoad: func(st stream.Stream) stream.Stream { return reluctantStream{st, &refusals, &closed} }})
	r.dump(1)
	refusals.Store(3)
	r.plan.Add(r.next(sim.OpWork, fault.Nth).Fail(nil))
	l, err := r.st.Load(r.ctx(), nil, r.pages, r.refs(0, 1), store.LoadOptions{})
	r.must(err)
	wantErr(t, l.Wait(r.ctx()), fault.ErrInjected)
	r.mustLoad(1)
	r.eventually(func() bool { return closed.Load() == 1 })
}

// An open stream may access slots. Close of the store therefore fails while a stream stays open,
// and a later Close tries again.
func TestDefectStoreForgetsAStreamThatDoesNotClose(t *testing.T) {
	t.Parallel()
	var refusals, closed atomic.Int64
	r := newRig(t, rigOptions{wrapLoad: func(st stream.Stream) stream.Stream { return reluctantStream{st, &refusals, &closed} }})
	r.dump(1)
	r.mustLoad(1)
	refusals.Store(4)
	for range 2 {
		wantErr(t, r.st.Close(r.ctx()), errReluctant)
	}
	r.must(r.st.Close(r.ctx()))
	if closed.Load() != 1 {
		t.Error("the stream is still open")
	}
}
