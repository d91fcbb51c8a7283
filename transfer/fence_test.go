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

// owing holds the bytes of a write on their way to there and cuts the link, so that the write fails
// and its connection is unfenced. restore lets other connections through.
func owing(t *testing.T, there, here *mem.Region) (p *pair, x *proxy, restore func()) {
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
			lease := x.held > 100_000
			x.mu.Unlock()
			if lease {
				return nil
			}
			select {
			case <-b.Done():
				return fmt.Errorf("nothing is held: %w", b.Err())
			case <-time.After(time.Millisecond):
			}
		}
	})
	x.set(func() { x.holdAfter, x.down = -1, true })
	x.cut(func(l *link) bool { return !l.data }, false) // first, or the fence gets through
	x.cut(func(*link) bool { return true }, false)
	wantErr(t, "a write while the link is cut", wait(t, b), context.DeadlineExceeded)
	return p, x, func() { x.set(func() { x.down = false }) }
}

// comeLate releases the held bytes and checks that they do not arrive.
func comeLate(t *testing.T, p *pair, x *proxy, there *mem.Region) {
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

// TestDefectReopenedSegmentIsNotFenced checks that an unfenced connection outlives its Remote: a
// segment that is opened again is written after the fence.
func TestDefectReopenedSegmentIsNotFenced(t *testing.T) {
	there, here := host(t, 1<<20), host(t, 1<<20)
	p, x, restore := owing(t, there, here)
	must(t, p.remote.Close())
	restore()
	p.open(t, x.addr())
	pattern(here.Bytes(), 9)
	p.do(t, Task{Op: Write, Local: mem.All(here)})
	comeLate(t, p, x, there)
	must(t, p.remote.Close())
	until(t, "connections stay", func() bool { return len(p.initiator.allPeers()) == 0 })
}

// TestDefectClosedSegmentIsNotFenced checks that a connection is fenced after its segment is
// closed, and that nothing of it is left then.
func TestDefectClosedSegmentIsNotFenced(t *testing.T) {
	there, here := host(t, 1<<20), host(t, 1<<20)
	p, x, restore := owing(t, there, here)
	must(t, p.remote.Close())
	restore()
	until(t, "nothing is fenced, or connections stay", func() bool { return p.initiator.Stats().Fences == 1 && len(p.initiator.allPeers()) == 0 })
	comeLate(t, p, x, there)
}

// TestDefectClosedEngineIsNotFenced checks that Close of an engine fences its connections or names
// the targets for which that failed.
func TestDefectClosedEngineIsNotFenced(t *testing.T) {
	there, here := host(t, 1<<20), host(t, 1<<20)
	p, x, restore := owing(t, there, here)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	err := p.initiator.Close(ctx)
	wantErr(t, "close while the link is cut", err, errdefs.ErrBusy)
	if id := fmt.Sprint(p.target.Identity()); err == nil || !strings.Contains(err.Error(), id) {
		t.Errorf("close while the link is cut: %v, which does not name engine %s", err, id)
	}
	restore()
	must(t, p.initiator.Close(t.Context()))
	comeLate(t, p, x, there)
}

// TestDefectFailureOvertakesTheFence checks that a notification of a batch without bytes, such as
// that of a failed request, arrives after the fence: the receiver reuses the pages then.
func TestDefectFailureOvertakesTheFence(t *testing.T) {
	there, here := host(t, 1<<20), host(t, 1<<20)
	p, x, restore := owing(t, there, here)
	reported := p.submit(t, SubmitOptions{Timeout: patience, Notify: []byte("failed")}, Task{Op: Write, Local: mem.Extent{Region: here}})
	restore()
	_, err := p.target.Receive(t.Context())
	must(t, err)
	pattern(there.Bytes(), 9)
	comeLate(t, p, x, there)
	must(t, wait(t, reported))
}
