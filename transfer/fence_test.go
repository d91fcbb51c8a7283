package transfer

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/mem"
)

// unfencedPair returns a pair after a failed write. The proxy holds the bytes of that write and has
// cut the link, so that its connection is unfenced. restore lets new connections through. before is
// called before the write fails.
func unfencedPair(t *testing.T, there, here *mem.Region, before ...func(p *pair)) (p *pair, x *proxy, restore func()) {
	t.Helper()
	var b *Batch
	testkit.Grow(t, time.Second, func(d time.Duration) error {
		p = &pair{target: engine(t, Options{}), initiator: engine(t, Options{Lanes: 1, PartBytes: 1 << 20, Stall: 500 * time.Millisecond})}
		x = newProxy(t, p.target.Address())
		p.publish(t, there)
		p.open(t, x.addr())
		x.set(func() { x.holdAfter = 20 })
		pattern(here.Bytes(), 1)
		b = p.submit(t, SubmitOptions{Timeout: d}, Task{Op: Write, Local: mem.All(here)})
		for {
			x.mu.Lock()
			lease := x.heldBytes > 100_000
			x.mu.Unlock()
			if lease {
				return nil
			}
			select {
			case <-b.Done():
				return fmt.Errorf("no bytes are held: %w", b.Err())
			case <-time.After(time.Millisecond):
			}
		}
	})
	for _, f := range before {
		f(p)
	}
	x.set(func() { x.holdAfter, x.down = -1, true })
	x.cut(func(l *link) bool { return !l.data }, false) // cut the control connection first, or the fence gets through
	x.cut(func(*link) bool { return true }, false)
	wantErr(t, "a write while the link is cut", wait(t, b), context.DeadlineExceeded)
	return p, x, func() { x.set(func() { x.down = false }) }
}

// releaseLate releases the held bytes and checks that they do not reach the memory.
func releaseLate(t *testing.T, p *pair, x *proxy, there *mem.Region) {
	t.Helper()
	want := append([]byte(nil), there.Bytes()...)
	x.set(func() { x.released = true })
	until(t, "the old connection stays", func() bool {
		x.mu.Lock()
		defer x.mu.Unlock()
		return x.holding == 0 && p.target.Stats().Connections == len(x.links)
	})
	same(t, "after late bytes", there.Bytes(), want)
}

// TestDefectReopenedSegmentIsNotFenced checks that an unfenced connection is remembered after its
// Remote is closed. If the segment is opened again, writes wait for the fence.
func TestDefectReopenedSegmentIsNotFenced(t *testing.T) {
	there, here := host(t, 1<<20), host(t, 1<<20)
	p, x, restore := unfencedPair(t, there, here)
	must(t, p.remote.Close())
	restore()
	p.open(t, x.addr())
	pattern(here.Bytes(), 9)
	p.do(t, Task{Op: Write, Local: mem.All(here)})
	releaseLate(t, p, x, there)
	must(t, p.remote.Close())
	until(t, "connections stay", func() bool { return len(p.initiator.allPeers()) == 0 })
}

// TestDefectClosedSegmentIsNotFenced checks that a connection is fenced after its segment was
// closed, and is then forgotten.
func TestDefectClosedSegmentIsNotFenced(t *testing.T) {
	there, here := host(t, 1<<20), host(t, 1<<20)
	p, x, restore := unfencedPair(t, there, here)
	must(t, p.remote.Close())
	restore()
	until(t, "nothing is fenced, or connections stay", func() bool { return p.initiator.Stats().Fences == 1 && len(p.initiator.allPeers()) == 0 })
	releaseLate(t, p, x, there)
}

// TestDefectClosedEngineIsNotFenced checks that Close of an engine fences its connections, or
// returns an error that names the targets that it could not fence.
func TestDefectClosedEngineIsNotFenced(t *testing.T) {
	there, here := host(t, 1<<20), host(t, 1<<20)
	p, x, restore := unfencedPair(t, there, here)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	err := p.initiator.Close(ctx)
	wantErr(t, "close while the link is cut", err, errdefs.ErrBusy)
	if id := fmt.Sprint(p.target.Identity()); err == nil || !strings.Contains(err.Error(), id) {
		t.Errorf("close while the link is cut: %v, which does not name engine %s", err, id)
	}
	restore()
	must(t, p.initiator.Close(t.Context()))
	releaseLate(t, p, x, there)
}

// TestDefectFailureOvertakesTheFence checks that the notification of a batch without bytes, such as
// that of a failed request, is sent after the fence. The receiver reuses the pages when it gets the
// notification.
func TestDefectFailureOvertakesTheFence(t *testing.T) {
	there, here := host(t, 1<<20), host(t, 1<<20)
	p, x, restore := unfencedPair(t, there, here, func(p *pair) {
		for _, q := range p.initiator.allPeers() {
			q.mu.Lock()
			q.fencing = true // so that no goroutine fences but that of the notification
			q.mu.Unlock()
		}
	})
	reported := p.submit(t, SubmitOptions{Timeout: patience, Notify: []byte("failed")}, Task{Op: Write, Local: mem.Extent{Region: here}})
	restore()
	_, err := p.target.Receive(t.Context())
	must(t, err)
	pattern(there.Bytes(), 9)
	releaseLate(t, p, x, there)
	must(t, wait(t, reported))
}
