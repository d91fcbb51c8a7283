package store_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jonboulle/clockwork"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/store"
	"github.com/kvlane/kvlane/stream"
	"github.com/kvlane/kvlane/tier"
)

// lostStream is a stream that loses its device at the first batch. Whether the device still
// executes that batch is unknown until the stream is closed.
type lostStream struct {
	stream.Stream
	mu     sync.Mutex
	ticket *stream.Ticket
}

func (l *lostStream) Submit(ctx context.Context, b *mem.Batch) (*stream.Ticket, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ticket != nil {
		return nil, fmt.Errorf("submit: %w", errdefs.ErrBroken)
	}
	if _, err := l.Stream.Submit(ctx, b); err != nil {
		return nil, err
	}
	l.ticket = stream.NewTicket(1, nil)
	return l.ticket, nil
}

func (l *lostStream) Close(ctx context.Context) error {
	if err := l.Stream.Close(ctx); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ticket != nil {
		l.ticket.Resolve(stream.Completion{}, errors.New("the device was lost"))
		l.ticket = nil
	}
	return nil
}

func TestLostDeviceDoesNotHoldItsTaskForEver(t *testing.T) {
	t.Parallel()
	for _, dumping := range []bool{false, true} {
		clock := clockwork.NewFakeClock()
		o := rigOptions{clock: clock}
		lost := false
		wrap := func(st stream.Stream) stream.Stream {
			if lost {
				return st
			}
			lost = true
			return &lostStream{Stream: st}
		}
		if dumping {
			o.wrapDump = wrap
		} else {
			o.wrapLoad = wrap
		}
		r := newRig(t, o)
		var task interface {
			Done() <-chan struct{}
			Errs() []error
		}
		if dumping {
			task = r.startDump(1)
		} else {
			r.dump(1)
			l, err := r.st.Load(r.ctx(), nil, r.pages, r.refs(0, 1), store.LoadOptions{})
			r.must(err)
			task = l
		}
		if !unresolved(task.Done()) {
			t.Fatal("the task was done while its copy may still have been running")
		}
		r.eventually(func() bool { clock.Advance(time.Second); return !unresolved(task.Done()) })
		if err := task.Errs()[0]; err == nil || !strings.Contains(err.Error(), "the device was lost") {
			t.Fatal(err)
		}
		r.dump(1)
		r.mustLoad(1)
		if n := r.st.Stats().StreamsReopened; n != 1 {
			t.Fatalf("%d streams were reopened, want 1", n)
		}
	}
}

func TestBrokenStreamIsReopened(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var reported []string
	r := newRig(t, rigOptions{tune: func(c *store.Config) {
		c.Hooks.StreamReopened = func(direction string, err error) {
			mu.Lock()
			defer mu.Unlock()
			reported = append(reported, fmt.Sprintf("%s: %v", direction, errors.Is(err, fault.ErrInjected)))
		}
	}})
	r.fill(0, 1)
	r.plan.Add(r.next(sim.OpWork, fault.Nth).Fail(nil))
	d, err := r.st.Dump(r.ctx(), r.pages, r.refs(0, 1), store.DumpOptions{})
	r.must(err)
	wantErr(t, d.Durable(r.ctx()), fault.ErrInjected)
	r.dump(1, 2)
	l, err := r.st.Load(r.ctx(), nil, r.pages, r.refs(0, 1), store.LoadOptions{})
	r.must(err)
	r.must(l.Wait(r.ctx()))
	r.plan.Add(r.next(sim.OpWork, fault.Nth).Fail(nil))
	l, err = r.st.Load(r.ctx(), nil, r.pages, r.refs(0, 1), store.LoadOptions{})
	r.must(err)
	wantErr(t, l.Wait(r.ctx()), fault.ErrInjected)
	r.mustLoad(1, 2)
	mu.Lock()
	defer mu.Unlock()
	if want := []string{"dump: true", "load: true"}; !slices.Equal(reported, want) || r.st.Stats().StreamsReopened != 2 {
		t.Fatalf("the hook reported %q, counted %d", reported, r.st.Stats().StreamsReopened)
	}
}

func TestCloseFinishesWrites(t *testing.T) {
	t.Parallel()
	hook := &hookTier{}
	unblock := make(chan struct{})
	r := newRig(t, rigOptions{dirs: []string{t.TempDir()}, wrapFile: func(next tier.Tier) tier.Tier { hook.Tier = next; return hook }})
	hook.put = func(ctx context.Context, key block.Key, src mem.Extent) error {
		<-unblock
		return hook.Tier.Put(ctx, key, src)
	}
	d := r.startDump(1, 2, 3)
	r.must(d.SourceFree(r.ctx()))
	open, err := r.st.Dump(r.ctx(), r.pages, r.refs(5, 7), store.DumpOptions{Layerwise: true})
	r.must(err)
	closed := make(chan error, 1)
	go func() { closed <- r.st.Close(context.Background()) }()
	wantErr(t, open.Durable(r.ctx()), errdefs.ErrClosed)
	select {
	case err := <-closed:
		t.Fatalf("Close returned before the writes were done: %v", err)
	case <-time.After(20 * time.Millisecond):
	}
	_, err = r.st.Load(r.ctx(), nil, r.pages, nil, store.LoadOptions{})
	wantErr(t, err, errdefs.ErrClosed)
	_, err = r.st.LeasePrefix(r.ctx(), nil, 0)
	wantErr(t, err, errdefs.ErrClosed)
	_, err = r.st.Lookup(r.ctx(), nil)
	wantErr(t, err, errdefs.ErrClosed)
	close(unblock)
	r.must(<-closed)
	r.must(r.st.Close(r.ctx()))
	r.must(d.Durable(r.ctx()))
	r.closeTiers()
	hook.put = nil
	r.openStore()
	r.mustLoad(1, 2, 3)
}

func TestCloseGivesUpWithItsContext(t *testing.T) {
	t.Parallel()
	hook := &hookTier{}
	r := newRig(t, rigOptions{dirs: []string{t.TempDir()}, wrapFile: func(next tier.Tier) tier.Tier { hook.Tier = next; return hook }})
	hook.put = func(ctx context.Context, _ block.Key, _ mem.Extent) error {
		<-ctx.Done()
		return context.Cause(ctx)
	}
	d := r.startDump(1)
	ctx, cancel := context.WithTimeout(r.ctx(), 10*time.Millisecond)
	defer cancel()
	wantErr(t, r.st.Close(ctx), errdefs.ErrCanceled, context.DeadlineExceeded)
	wantErr(t, d.Durable(r.ctx()), errdefs.ErrCanceled)
	r.must(r.st.Close(r.ctx()))
}

// Loads and dumps have separate limits of running tasks. A dump ends with the slowest tier, so a
// slow disk must not delay loads.
func TestDefectDumpsKeepLoadsFromBeginning(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigOptions{tune: func(c *store.Config) { c.Tasks = 1 }})
	r.dump(1)
	d, err := r.st.Dump(r.ctx(), r.pages, r.refs(0, 2), store.DumpOptions{Layerwise: true})
	r.must(err)
	shortCtx := func() context.Context {
		ctx, cancel := context.WithTimeout(r.ctx(), 10*time.Millisecond)
		t.Cleanup(cancel)
		return ctx
	}
	_, err = r.st.Dump(shortCtx(), r.pages, r.refs(1, 3), store.DumpOptions{})
	wantErr(t, err, errdefs.ErrBusy, context.DeadlineExceeded)
	dep := &dependency{done: make(chan struct{})}
	l := r.loadAfter(dep, false, 1)
	_, err = r.st.Load(shortCtx(), nil, r.pages, nil, store.LoadOptions{})
	wantErr(t, err, errdefs.ErrBusy, context.DeadlineExceeded)
	_, err = r.st.Prefetch(shortCtx(), nil)
	wantErr(t, err, errdefs.ErrBusy, context.DeadlineExceeded)
	if n := r.st.Stats().Running; n != 2 {
		t.Errorf("%d tasks are running, want 2", n)
	}
	close(dep.done)
	r.resolved(l.Done())
	r.must(r.checkPage(0, 1))
	r.mustLoad(1)
	d.Cancel()
	r.resolved(d.Done())
	r.dump(4)
}
