package transfer

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/rdma/soft"
)

// TestDefectKeysOfARefreshedBuffer checks that a part that was created when its buffer had no keys
// does not use NICs, even if the buffer gets keys later.
func TestDefectKeysOfARefreshedBuffer(t *testing.T) {
	p, here, _ := rdmaPair(t, softNICs(t, nil, 1), Options{}, 4096)
	must(t, p.remote.RDMA(0))
	before := *p.remote.buffers[0]
	before.Keys = nil
	x := &part{op: Write, to: p.remote, buf: &before, shape: shape{pages: pageZero}}
	x.append(0, mem.All(here))
	g := newGroup(&Batch{e: p.initiator}, p.remote, nil)
	wantErr(t, "by NICs", g.beginRDMA(t.Context(), x, PathRDMA), errdefs.ErrNotSupported)
}

// TestDefectImpatienceTiresNICs checks that a NIC is not put into backoff because a batch timed out
// while it connected queue pairs.
func TestDefectImpatienceTiresNICs(t *testing.T) {
	p, here, _ := rdmaPair(t, softNICs(t, nil, 1), Options{}, 4096)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for range 30 { // some batches end before they start
		_, err := p.remote.p.queue(ended, p.remote, true)
		wantErr(t, "a queue pair for a batch that is over", err, context.Canceled)
	}
	wantPath(t, p.do(t, write(here)), PathRDMA, false)
}

// TestDefectClosedSegmentsAreReconnects checks that queue pairs that are closed with their segment
// do not count as broken.
func TestDefectClosedSegmentsAreReconnects(t *testing.T) {
	p, here, _ := rdmaPair(t, softNICs(t, nil, 1), Options{Lanes: 1}, 4096)
	first := p.remote
	p.do(t, write(here))
	p.open(t, p.target.Address())
	must(t, first.Close())
	p.do(t, write(here))
	if s := p.initiator.Stats(); s.Reconnects != 0 {
		t.Errorf("%d connections were made again", s.Reconnects)
	}
}

// TestDefectCloseWaitsForQueuePairs checks a queue pair that cannot be closed. It delays Close of
// the segment and of the engine at most until their contexts end, and does not delay other
// requests. When the NIC can close it, both close.
func TestDefectCloseWaitsForQueuePairs(t *testing.T) {
	plan := fault.New(1)
	p, here, _ := rdmaPair(t, faultyNICs(t, plan, 16, 4, "soft0"), Options{Lanes: 1, Stall: 300 * time.Millisecond}, 4096)
	p.do(t, write(here))
	plan.Add(fault.After(soft.OpClose, int(plan.Seen(soft.OpClose))).Fail(nil))
	defer plan.Clear()
	within := func(what string, f func() error) {
		t.Helper()
		ended := make(chan error, 1)
		go func() { ended <- f() }()
		select {
		case err := <-ended:
			wantErr(t, what, err, errdefs.ErrBusy)
		case <-time.After(testkit.Patience()):
			t.Errorf("%s: it is waited for", what)
		}
	}
	within("close the segment", p.remote.Close)
	p.remote.Describe()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	within("close the engine", func() error { return p.initiator.Close(ctx) })
	plan.Clear()
	must(t, p.remote.Close())
}

// TestDefectQueueThatDoesNotConnectNorClose checks a queue pair that fails to connect and then
// cannot be closed. The batch takes another path, Close of both engines is not delayed, and the
// failure is counted. No second queue pair is opened until the NIC closes the first.
func TestDefectQueueThatDoesNotConnectNorClose(t *testing.T) {
	// The target connects its queue pair first, in three steps.
	for side, steps := range map[string]int{"target": 1, "initiator": 4} {
		t.Run(side, func(t *testing.T) {
			plan := fault.New(1)
			nics := faultyNICs(t, plan, 16, 4, "soft0")
			defer plan.Clear()
			p, here, there := rdmaPair(t, nics, Options{Lanes: 1, Stall: time.Second}, 4096)
			plan.Add(fault.After(soft.OpModifyQP, int(plan.Seen(soft.OpModifyQP))+steps).Fail(nil))
			plan.Add(fault.After(soft.OpClose, int(plan.Seen(soft.OpClose))).Fail(nil))
			b := p.submit(t, SubmitOptions{Timeout: 10 * time.Second}, write(here))
			must(t, wait(t, b))
			wantPath(t, b, PathTCP, true)
			if why := b.Completion().Fallback; !strings.Contains(why.Error(), "injected") {
				t.Errorf("the batch used sockets because of %v", why)
			}
			same(t, "written", there.Bytes(), here.Bytes())
			left := func() int { return p.initiator.Stats().QueuesLeft + p.target.Stats().QueuesLeft }
			for range 3 {
				_, err := p.remote.p.queue(t.Context(), p.remote, false)
				wantErr(t, "another queue pair", err, errdefs.ErrBusy)
			}
			if n := left(); n == 0 || n > 2 {
				t.Errorf("%d queue pairs do not close, of each engine one may", n)
			}
			for name, e := range map[string]*Engine{"initiator": p.initiator, "target": p.target} {
				ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
				ended := make(chan error, 1)
				go func() { ended <- e.Close(ctx) }()
				select {
				case err := <-ended:
					if err == nil {
						t.Errorf("close %s: it is closed", name)
					}
				case <-time.After(testkit.Patience()):
					t.Fatalf("close %s: it does not end with its context", name)
				}
				cancel()
			}
			plan.Clear()
			closeEngine(t, p.initiator)
			closeEngine(t, p.target)
			if n := left(); n != 0 {
				t.Errorf("%d queue pairs are left", n)
			}
		})
	}
}

// TestDefectTargetThatCouldNotConnectIsLeft checks a batch that may use NICs only. If the target's
// NIC fails to connect a queue pair, the batch retries until its timeout.
func TestDefectTargetThatCouldNotConnectIsLeft(t *testing.T) {
	plan := fault.New(1)
	p, here, there := rdmaPair(t, faultyNICs(t, plan, 16, 4, "soft0"), Options{Lanes: 1}, 4096)
	plan.Add(fault.Nth(soft.OpModifyQP, int(plan.Seen(soft.OpModifyQP))+1).Fail(nil))
	b := p.submit(t, SubmitOptions{Timeout: patience, Path: PathRDMA}, write(here))
	must(t, wait(t, b))
	if plan.Injected() != 1 || b.Completion().Retries == 0 {
		t.Errorf("%d faults, completion %+v", plan.Injected(), b.Completion())
	}
	same(t, "written", there.Bytes(), here.Bytes())
}
