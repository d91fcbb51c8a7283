package bench

import (
	"context"
	"errors"
	"time"

	"github.com/kvlane/kvlane/device"
)

// stage times the product. Between the windows it goes on without a pause: after one the clock of a GPU would be higher
// for a while, and whichever windows came after longer pauses would look faster.
type stage struct {
	product Product
	n       int // products of a window
	now     func() time.Time
}

// window is what happened in one.
type window struct {
	took  time.Duration
	moved int64 // bytes that the traffic moved meanwhile
}

// chunk enqueues n products and returns an event for their end.
func (st *stage) chunk(n int) (device.Event, error) {
	if err := st.product.Enqueue(n); err != nil {
		return nil, err
	}
	return st.product.Record()
}

// gauge runs the product until it is warm, and sets how many products a window of that length has.
func (st *stage) gauge(ctx context.Context, length time.Duration) error {
	for start := st.now(); ; {
		if _, err := st.time(ctx, 1); err != nil {
			return err
		}
		if st.now().Sub(start) >= min(productWarmup, 10*length) {
			break
		}
	}
	took, err := st.time(ctx, gauged)
	if err != nil {
		return err
	}
	st.n = max(1, int(gauged*length/max(took, 1)))
	return nil
}

// time runs n products and returns how long they took.
func (st *stage) time(ctx context.Context, n int) (time.Duration, error) {
	start := st.now()
	e, err := st.chunk(n)
	if err != nil {
		return 0, err
	}
	defer e.Close()
	if err := e.Wait(ctx); err != nil {
		return 0, err
	}
	return st.now().Sub(start), nil
}

// run runs a window for every element of with, those that are true beside traffic. Before each window there is a lead of
// products, in which the traffic starts or stops. A window that begins before the traffic has done so is made again, after
// a longer lead.
func (st *stage) run(ctx context.Context, t *traffic, with []bool) (windows []window, err error) {
	defer func() { err = errors.Join(err, t.stop()) }()
	lead := max(1, st.n/2)
	// The products of the next lead are enqueued before a window ends.
	next, err := st.chunk(4 * lead)
	if err != nil {
		return nil, err
	}
	defer func() {
		// What is enqueued is left to the product's owner, but for the event.
		next.Close()
	}()
	for len(windows) < len(with) {
		if err := t.set(ctx, with[len(windows)]); err != nil {
			return nil, err
		}
		w, ready, err := st.window(ctx, t, &next, lead)
		if err != nil {
			return nil, err
		}
		if t.failed() {
			return nil, nil // stop tells why
		}
		if !ready && lead < 64*st.n {
			lead *= 2
			continue
		}
		windows = append(windows, w)
	}
	return windows, next.Wait(ctx)
}

// window times one window, which begins when next, the end of its lead, is done, and replaces next by the end of the lead
// after it.
func (st *stage) window(ctx context.Context, t *traffic, next *device.Event, lead int) (w window, ready bool, err error) {
	begin := *next
	end, err := st.chunk(st.n)
	if err != nil {
		return w, false, err
	}
	defer end.Close()
	after, err := st.chunk(lead)
	if err != nil {
		return w, false, err
	}
	*next = after
	defer begin.Close()
	if err := begin.Wait(ctx); err != nil {
		return w, false, err
	}
	start, before := st.now(), t.total.Load()
	ready = t.settled()
	if err := end.Wait(ctx); err != nil {
		return w, false, err
	}
	w.took, w.moved = st.now().Sub(start), t.total.Load()-before
	return w, ready, nil
}
