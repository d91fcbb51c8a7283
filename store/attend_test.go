package store_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/store"
	"github.com/kvlane/kvlane/stream"
)

// door is a held stream that says when a batch comes, and takes it when it is let in.
type door struct {
	*heldStream
	came, in chan struct{}
}

func (d door) Submit(ctx context.Context, b *mem.Batch) (*stream.Ticket, error) {
	if b.Paged != nil {
		d.came <- struct{}{}
		select {
		case <-d.in:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	return d.heldStream.Submit(ctx, b)
}

// took waits until the stream has taken so many batches.
func (d door) took(r *rig, n int) {
	r.tb.Helper()
	for ctx := r.ctx(); d.count() < n; time.Sleep(time.Millisecond) {
		r.must(context.Cause(ctx))
	}
}

// heldLoads returns a rig whose stream for loads is open, and whose blocks 1 and 2 are in the cache.
func heldLoads(t *testing.T) (*rig, door) {
	t.Helper()
	d := door{new(heldStream), make(chan struct{}, 8), make(chan struct{}, 8)}
	r := newRig(t, rigOptions{planeBytes: mem.LeafBytes, wrapLoad: func(st stream.Stream) stream.Stream {
		d.Stream = st
		return d
	}})
	r.dump(1, 2)
	r.must(r.st.OpenStreams(r.ctx()))
	return r, d
}

// A load begins to copy before Load returns, since to wake another goroutine up for it takes longer; but not where it might have to
// wait for what others copy.
func TestLoadBeginsToCopyAtOnce(t *testing.T) {
	r, d := heldLoads(t)
	var tasks [2]*store.LoadTask
	returned := [2]chan struct{}{make(chan struct{}), make(chan struct{})}
	begin := func(i int) {
		go func() {
			defer close(returned[i])
			var err error
			if tasks[i], err = r.st.Load(r.ctx(), nil, r.pages, r.refs(i, 1+i), store.LoadOptions{}); err != nil {
				t.Error(err)
			}
		}()
	}
	begin(0)
	<-d.came
	if !unresolved(returned[0]) {
		t.Error("Load has returned, and its batch has not been submitted")
	}
	d.in <- struct{}{}
	<-returned[0]
	begin(1)
	r.resolved(returned[1])
	for i := range tasks {
		if i == 1 {
			<-d.came
			d.in <- struct{}{}
		}
		d.took(r, i+1)
		d.landed(0, true)
		r.must(tasks[i].Wait(r.ctx()))
	}
}

// A small load is left to whoever waits for it, and ends all the same where nobody does.
func TestLoadThatNobodyWaitsFor(t *testing.T) {
	r := newRig(t, rigOptions{planeBytes: mem.LeafBytes})
	r.dump(1)
	for range 2 { // the stream is opened by the first
		l, err := r.st.Load(r.ctx(), nil, r.pages, r.refs(4, 1), store.LoadOptions{})
		r.must(err)
		for ctx := r.ctx(); l.Errs() == nil; time.Sleep(time.Millisecond) {
			r.must(context.Cause(ctx))
		}
		r.must(errors.Join(l.Errs()...))
		r.must(r.holds(4, 1))
	}
}

// Who waits for a small load goes on with it. If he gives up, or the copy proves wrong, others do.
func TestLoadGoesOnWithoutItsWaiter(t *testing.T) {
	r, d := heldLoads(t)
	close(d.in)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for i, wait := range []func(l *store.LoadTask) error{
		func(l *store.LoadTask) error { return l.Wait(ended) },
		func(l *store.LoadTask) error { return l.WaitShard(ended, 0) },
	} {
		l, err := r.st.Load(r.ctx(), nil, r.pages, r.refs(4, 1), store.LoadOptions{})
		r.must(err)
		wantErr(t, wait(l), context.Canceled)
		d.landed(0, false)
		d.took(r, 2*i+2)
		d.landed(0, true)
		r.must(l.Wait(r.ctx()))
	}
	if n := r.st.Stats().BadCopies; n != 2 {
		t.Errorf("%d copies were wrong, want 2", n)
	}
	l, err := r.st.Load(r.ctx(), nil, r.pages, r.refs(4, 1), store.LoadOptions{})
	r.must(err)
	l.Cancel()
	wantErr(t, l.Wait(ended), context.Canceled)
	d.tickets[len(d.tickets)-1].Resolve(stream.Completion{}, errdefs.ErrCanceled)
	wantErr(t, l.Wait(r.ctx()), errdefs.ErrCanceled)
}

// What a small load took that nobody waited for was learned as if its copy had gone on until somebody looked.
func TestDefectUnseenLoadIsLearned(t *testing.T) {
	const loads = 16 // a rate takes several
	r, d := heldLoads(t)
	close(d.in)
	for n := range loads {
		l, err := r.st.Load(r.ctx(), nil, r.pages, r.refs(4, 1), store.LoadOptions{})
		r.must(err)
		<-d.came
		d.took(r, n+1)
		time.Sleep(time.Millisecond)
		d.landed(0, true)
		for ctx := r.ctx(); l.Errs() == nil; time.Sleep(time.Millisecond) {
			r.must(context.Cause(ctx))
		}
		r.must(errors.Join(l.Errs()...))
	}
	if rate := r.st.Stats().Admission.MemoryRate; rate != 0 {
		t.Errorf("%v bytes a second were learned", rate)
	}
	for n := loads + 1; r.st.Stats().Admission.MemoryRate == 0; n++ { // as some may come too late
		if n > 8*loads {
			t.Fatal("nothing was learned of loads that were waited for")
		}
		l, err := r.st.Load(r.ctx(), nil, r.pages, r.refs(4, 1), store.LoadOptions{})
		r.must(err)
		time.AfterFunc(2*time.Millisecond, func() { <-d.came; d.took(r, n); d.landed(0, true) })
		r.must(l.Wait(r.ctx()))
	}
}
