package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/leak"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream"
	streamcopy "github.com/kvlane/kvlane/stream/copy"
)

// slowed is a product that takes longer while batches are under way. Its time is its own: it passes where its events are
// waited for, and does not depend on how busy the machine is that runs the test.
type slowed struct {
	product time.Duration
	by      float64 // how much longer
	w       *watch
	cold    time.Duration // what the first takes in addition
	n       int
	fail    error
}

func (p *slowed) Describe() string    { return "products of no matrices" }
func (p *slowed) Operations() float64 { return 1e12 }

func (p *slowed) Enqueue(n int) error {
	p.n += n
	return p.fail
}

func (p *slowed) Record() (device.Event, error) {
	leak.Add(leak.Events, 1)
	e := &slowedEvent{p: p, n: p.n}
	p.n = 0
	return e, nil
}

type slowedEvent struct {
	p *slowed
	n int
}

func (e *slowedEvent) Done() (bool, error) { return true, nil }
func (e *slowedEvent) Close()              { leak.Add(leak.Events, -1) }

func (e *slowedEvent) Wait(ctx context.Context) error {
	busy, before := e.p.w.busy()
	time.Sleep(time.Duration(e.n) * time.Millisecond / 2) // for the traffic to get somewhere, or to end
	after, submitted := e.p.w.busy()
	// However busy the machine is: the second submission from here on comes after a batch that was done meanwhile.
	for end := time.Now().Add(testkit.Patience()); after && submitted < before+2 && time.Now().Before(end); {
		time.Sleep(50 * time.Microsecond)
		after, submitted = e.p.w.busy()
	}
	cost := float64(e.p.product)*float64(e.n) + float64(e.p.cold)
	if busy || after || submitted > before {
		cost *= 1 + e.p.by
	}
	e.p.cold = 0
	e.p.w.add(time.Duration(cost))
	return ctx.Err()
}

// watch sees the batches of all streams of a run, and has the product's time.
type watch struct {
	mu      sync.Mutex
	time    time.Time
	tickets []*stream.Ticket // the last few
	taken   int              // submissions that were accepted
	left    int              // submissions until one fails; negative: none
}

func (w *watch) now() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.time
}

func (w *watch) add(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.time = w.time.Add(d)
}

// busy reports whether batches are under way, and how many there ever were.
func (w *watch) busy() (busy bool, submitted int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	busy = slices.ContainsFunc(w.tickets, func(t *stream.Ticket) bool {
		select {
		case <-t.Done():
			return false
		default:
			return true
		}
	})
	return busy, w.taken
}

type watched struct {
	stream.Stream
	w *watch
}

func (s *watched) Submit(ctx context.Context, b *mem.Batch) (*stream.Ticket, error) {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	if s.w.left--; s.w.left == 0 {
		return nil, errors.New("no more")
	}
	t, err := s.Stream.Submit(ctx, b)
	if err == nil {
		s.w.taken++
		s.w.tickets = append(s.w.tickets, t)
		s.w.tickets = s.w.tickets[max(0, len(s.w.tickets)-besideDepth):]
	}
	return t, err
}

func besideRun(t *testing.T, p *slowed, fail int) (*Report, error) {
	t.Helper()
	dev, err := sim.Open(sim.Options{MemoryBytes: 256 << 20, BandwidthGBps: 1})
	if err != nil {
		t.Fatal(err)
	}
	p.w = &watch{time: time.Unix(0, 0), left: fail}
	o := small(engine)
	o.Bytes, o.PoolBytes, o.ReferenceBytes, o.Sizes, o.Reps = 4<<20, 4<<20, 1<<20, []int64{4 << 10}, 1
	o.Directions, o.Layouts = []Direction{ToHost}, []Layout{HostScattered}
	o.now = p.w.now
	o.BesideBytes = 256 << 10
	o.Product, o.BesideContenders, o.Pairs, o.Window = p, []Contender{engine, {Policy: Background}}, 5, 10*time.Millisecond
	rep, err := Run(t.Context(), dev, func(c Contender) (stream.Stream, error) {
		if c.Policy == Background {
			return nil, fmt.Errorf("no policies here: %w", errdefs.ErrNotSupported)
		}
		s, err := streamcopy.Open(dev, streamcopy.Options{Path: c.Path})
		return &watched{s, p.w}, err
	}, o)
	return rep, errors.Join(err, dev.Close())
}

func TestLossOfAProduct(t *testing.T) {
	rep, err := besideRun(t, &slowed{product: 5 * time.Millisecond, by: 1}, -1)
	if err != nil {
		t.Fatal(err)
	}
	p := rep.Product
	if p == nil || len(p.Losses) != len(besideDirections) || p.PerWindow < 1 || p.Counts {
		t.Fatalf("product %+v", p)
	}
	for _, l := range p.Losses {
		// A product that takes twice as long has half the rate.
		near(t, "loss", l.Loss, 0.5, 1e-9)
		if l.Path != "copy-engine" || l.Low > l.Loss || l.Loss > l.High || l.GBps <= 0 || l.BesideTFLOPS >= l.AloneTFLOPS {
			t.Errorf("loss %+v", l)
		}
	}
	if len(rep.Missing) != 1 || rep.Missing[0].Path != "auto:background" {
		t.Errorf("missing %+v", rep.Missing)
	}
	var b strings.Builder
	if err := rep.WriteText(&b); err != nil || !strings.Contains(b.String(), "Beside products of no matrices") || !strings.Contains(b.String(), "It does not count") {
		t.Errorf("text, %v:\n%s", err, b.String())
	}
}

// That the first product takes long does not make the windows short.
func TestNoLossWithoutInterference(t *testing.T) {
	rep, err := besideRun(t, &slowed{product: 2 * time.Millisecond, cold: 30 * time.Millisecond}, -1)
	if err != nil {
		t.Fatal(err)
	}
	if n := rep.Product.PerWindow; n != 5 {
		t.Errorf("a window of 10 ms has %d products of 2 ms", n)
	}
	for _, l := range rep.Product.Losses {
		near(t, "loss", l.Loss, 0, 1e-9)
	}
}

func TestFailuresBesideAProduct(t *testing.T) {
	if _, err := besideRun(t, &slowed{product: time.Millisecond, fail: errdefs.ErrBroken}, -1); !errors.Is(err, errdefs.ErrBroken) {
		t.Errorf("a product that fails: %v", err)
	}
	// The measurements before it take fewer than 20 submissions, the traffic takes more.
	if _, err := besideRun(t, &slowed{product: time.Millisecond}, 20); err == nil || !strings.Contains(err.Error(), "no more") {
		t.Errorf("traffic that fails: %v", err)
	}
}
