package interference

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/leak"
	"github.com/kvlane/kvlane/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// fakeProduct slows down while the fake work runs. Its clock advances only during waits for events,
// so that the result does not depend on the load of the machine.
type fakeProduct struct {
	duration time.Duration // duration of one product
	slowdown float64       // relative increase of the duration while the work runs
	first    time.Duration // additional duration of the first wait
	fail     error
	enqueued int

	mu    sync.Mutex
	clock time.Time
	busy  bool
	parts int // completed parts of the work
}

func (p *fakeProduct) Describe() string    { return "fake products" }
func (p *fakeProduct) Operations() float64 { return 1e12 }

func (p *fakeProduct) Enqueue(n int) error {
	p.enqueued += n
	return p.fail
}

func (p *fakeProduct) Record() (device.Event, error) {
	leak.Add(leak.Events, 1)
	e := &fakeEvent{p: p, products: p.enqueued}
	p.enqueued = 0
	return e, nil
}

func (p *fakeProduct) now() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.clock
}

func (p *fakeProduct) state() (busy bool, parts int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.busy, p.parts
}

// work is the fake work. It fails after the given number of parts, if that is positive.
func (p *fakeProduct) work(failAfter int) func(context.Context, *atomic.Bool, func(int64)) error {
	return func(_ context.Context, quit *atomic.Bool, moved func(int64)) error {
		set := func(busy bool) {
			p.mu.Lock()
			p.busy = busy
			p.mu.Unlock()
		}
		set(true)
		defer set(false)
		for n := 1; !quit.Load(); n++ {
			if n == failAfter {
				return errdefs.ErrBusy
			}
			p.mu.Lock()
			p.parts++
			p.mu.Unlock()
			moved(1 << 20)
			time.Sleep(50 * time.Microsecond)
		}
		return nil
	}
}

type fakeEvent struct {
	p        *fakeProduct
	products int
}

func (e *fakeEvent) Done() (bool, error) { return true, nil }
func (e *fakeEvent) Close()              { leak.Add(leak.Events, -1) }

func (e *fakeEvent) Wait(ctx context.Context) error {
	before, parts := e.p.state()
	time.Sleep(time.Duration(e.products) * time.Millisecond / 2) // so that the work can start or end
	after, now := e.p.state()
	for end := time.Now().Add(testkit.Patience()); after && now < parts+2 && time.Now().Before(end); {
		time.Sleep(50 * time.Microsecond)
		after, now = e.p.state()
	}
	took := float64(e.p.duration)*float64(e.products) + float64(e.p.first)
	if before || after || now > parts {
		took *= 1 + e.p.slowdown
	}
	e.p.first = 0
	e.p.mu.Lock()
	e.p.clock = e.p.clock.Add(time.Duration(took))
	e.p.mu.Unlock()
	return ctx.Err()
}

func measureFake(t *testing.T, p *fakeProduct, failAfter int) (*stage, Loss, error) {
	t.Helper()
	st := &stage{product: p, windowProducts: 1, now: p.now}
	l, err := measurePairs(t.Context(), st, 5, 10*time.Millisecond, &traffic{work: p.work(failAfter)})
	return st, l, err
}

// A product that takes twice as long runs at half the rate.
func TestLoss(t *testing.T) {
	_, l, err := measureFake(t, &fakeProduct{duration: 5 * time.Millisecond, slowdown: 1}, 0)
	if err != nil {
		t.Fatal(err)
	}
	near(t, "loss", l.Loss, 0.5, 1e-9)
	if l.Low > l.Loss || l.Loss > l.High || l.GBps <= 0 || l.BesideTFLOPS >= l.AloneTFLOPS {
		t.Errorf("loss %+v", l)
	}
}

// A slow first product does not shorten the windows.
func TestNoLoss(t *testing.T) {
	st, l, err := measureFake(t, &fakeProduct{duration: 2 * time.Millisecond, first: 30 * time.Millisecond}, 0)
	if err != nil {
		t.Fatal(err)
	}
	near(t, "loss", l.Loss, 0, 1e-9)
	if st.windowProducts != 5 {
		t.Errorf("a window of 10 ms has %d products of 2 ms", st.windowProducts)
	}
}

func TestFailures(t *testing.T) {
	if _, _, err := measureFake(t, &fakeProduct{duration: time.Millisecond, fail: errdefs.ErrBroken}, 0); !errors.Is(err, errdefs.ErrBroken) {
		t.Errorf("failing product: %v", err)
	}
	if _, _, err := measureFake(t, &fakeProduct{duration: time.Millisecond}, 5); !errors.Is(err, errdefs.ErrBusy) {
		t.Errorf("failing work: %v", err)
	}
}
