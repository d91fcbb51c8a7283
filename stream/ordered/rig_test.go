package ordered_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream"
	"github.com/kvlane/kvlane/stream/ordered"
)

var errStillRuns = errors.New("the hardware still runs")

// rig is a stream over simulated hardware that the test controls.
type rig struct {
	s *ordered.Stream

	mu     sync.Mutex
	room   int // number of parts that can be issued
	issued []uint64
	runs   bool // the hardware cannot be stopped
	freed  int
	free   error // result of the next attempt to free
}

func newRig(depth int) *rig {
	r := &rig{room: 1 << 20}
	r.s = ordered.New(ordered.Options{Name: "test stream", Depth: depth, Stop: r.stop, Free: r.giveBack})
	r.s.Start()
	return r
}

func (r *rig) stop(context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.runs {
		return errStillRuns
	}
	return nil
}

func (r *rig) giveBack() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.freed++
	return r.free
}

// set changes the rig and lets the stream detect the change.
func (r *rig) set(change func()) {
	r.mu.Lock()
	change()
	r.mu.Unlock()
	r.s.ResolveCompleted()
	synctest.Wait()
}

func (r *rig) close(t *testing.T) {
	t.Helper()
	if err := r.s.Close(t.Context()); err != nil {
		t.Errorf("close: %v", err)
	}
}

// batch is a batch of several parts. Its fields are guarded by rig.mu after it is submitted.
type batch struct {
	ordered.Batch
	rig    *rig
	ticket *stream.Ticket

	parts    int // parts that are not yet issued
	inFlight int
	finished bool
	onIssue  func()
}

func (b *batch) Poll() bool { return false }
func (b *batch) Watch()     {}

func (b *batch) Issue() (whole, ok bool) {
	r := b.rig
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.room == 0 {
		return false, false
	}
	r.room--
	b.Started = time.Now()
	b.parts--
	b.inFlight++
	b.AddInFlight()
	r.issued = append(r.issued, b.ID())
	if b.onIssue != nil {
		b.onIssue()
	}
	return b.parts <= 0, true
}

func (b *batch) Finish(verdict error) (stream.Completion, error) {
	b.rig.mu.Lock()
	defer b.rig.mu.Unlock()
	if b.inFlight > 0 || b.finished {
		panic("finished before it has landed, or twice")
	}
	b.finished = true
	return stream.Completion{Bytes: int64(b.ID())}, verdict
}

// land completes parts of the batch.
func (b *batch) land(parts int) { b.rig.set(func() { b.landed(parts) }) }

func (b *batch) landed(parts int) {
	for b.inFlight -= parts; parts > 0; parts-- {
		b.RemoveInFlight()
	}
}

func (r *rig) try(ctx context.Context, b *batch, after ...mem.Dependency) error {
	b.rig = r
	t, err := r.s.Submit(ctx, b, &b.Batch, after)
	b.ticket = t
	return err
}

func (r *rig) submit(t *testing.T, parts int, after ...mem.Dependency) *batch {
	t.Helper()
	b := &batch{parts: parts}
	if err := r.try(t.Context(), b, after...); err != nil {
		t.Fatal(err)
	}
	synctest.Wait()
	return b
}

// wantDone checks which batches have resolved, one character for each.
func wantDone(t *testing.T, want string, all ...*batch) {
	t.Helper()
	got := ""
	for _, b := range all {
		switch {
		case !b.ticket.Poll():
			got += "-"
		case b.ticket.Err() != nil:
			got += "x"
		default:
			got += "o"
		}
	}
	if got != want {
		t.Errorf("resolved: %s, want %s", got, want)
	}
}

func wantIs(t *testing.T, err error, all ...error) {
	t.Helper()
	for _, is := range all {
		if !errors.Is(err, is) {
			t.Errorf("error %v is not %v", err, is)
		}
	}
}

func wantNot(t *testing.T, err, not error) {
	t.Helper()
	if errors.Is(err, not) {
		t.Errorf("error %v is %v", err, not)
	}
}
