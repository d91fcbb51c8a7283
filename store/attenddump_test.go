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
	"github.com/kvlane/kvlane/tier"
)

// heldDumps returns a rig with a cache alone, whose stream for dumps is open.
func heldDumps(t *testing.T) (*rig, door) {
	t.Helper()
	d := door{new(heldStream), make(chan struct{}, 8), make(chan struct{}, 8)}
	r := newRig(t, rigOptions{planeBytes: mem.LeafBytes, wrapDump: func(st stream.Stream) stream.Stream {
		d.Stream = st
		return d
	}})
	r.must(r.st.OpenStreams(r.ctx()))
	return r, d
}

// A dump begins to copy before Dump returns, as a load does; but not where it might have to wait for what others copy.
func TestDumpBeginsToCopyAtOnce(t *testing.T) {
	r, d := heldDumps(t)
	var tasks [2]*store.DumpTask
	returned := [2]chan struct{}{make(chan struct{}), make(chan struct{})}
	begin := func(i int) {
		go func() {
			defer close(returned[i])
			var err error
			if tasks[i], err = r.st.Dump(r.ctx(), r.pages, r.refs(i, 1+i), store.DumpOptions{}); err != nil {
				t.Error(err)
			}
		}()
	}
	begin(0)
	<-d.came
	if !unresolved(returned[0]) {
		t.Error("Dump has returned, and its batch has not been submitted")
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
		r.must(tasks[i].SourceFree(r.ctx()))
		r.must(tasks[i].Published(r.ctx()))
		r.must(tasks[i].Durable(r.ctx()))
	}
}

// A small dump is left to whoever waits for it, and ends all the same where nobody does.
func TestDumpThatNobodyWaitsFor(t *testing.T) {
	r := newRig(t, rigOptions{planeBytes: mem.LeafBytes})
	for n := 1; n <= 2; n++ { // the stream is opened by the first
		r.fill(4, n)
		d, err := r.st.Dump(r.ctx(), r.pages, r.refs(4, n), store.DumpOptions{})
		r.must(err)
		for ctx := r.ctx(); d.Errs() == nil; time.Sleep(time.Millisecond) {
			r.must(context.Cause(ctx))
		}
		r.must(errors.Join(d.Errs()...))
		r.mustLoad(n)
	}
}

// Who waits for a small dump goes on with it. If he gives up, or cancels it, others do.
func TestDumpGoesOnWithoutItsWaiter(t *testing.T) {
	r, d := heldDumps(t)
	close(d.in)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for i, wait := range []func(d *store.DumpTask) error{
		func(d *store.DumpTask) error { return d.SourceFree(ended) },
		func(d *store.DumpTask) error { return d.Published(ended) },
		func(d *store.DumpTask) error { return d.Durable(ended) },
	} {
		dump, err := r.st.Dump(r.ctx(), r.pages, r.refs(4, 1+i), store.DumpOptions{})
		r.must(err)
		wantErr(t, wait(dump), context.Canceled)
		d.took(r, 1+i)
		d.landed(0, true)
		r.must(dump.Durable(r.ctx()))
		r.must(dump.SourceFree(ended))
	}
	dump, err := r.st.Dump(r.ctx(), r.pages, r.refs(4, 7), store.DumpOptions{})
	r.must(err)
	dump.Cancel()
	wantErr(t, dump.SourceFree(ended), context.Canceled)
	d.failed(errdefs.ErrCanceled)
	wantErr(t, dump.Durable(r.ctx()), errdefs.ErrCanceled)
	if h := r.hits(7)[0]; h.State == tier.Ready {
		t.Error("a block of a canceled dump is found")
	}
}
