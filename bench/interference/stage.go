package interference

import (
	"context"
	"errors"
	"time"

	"github.com/kvlane/kvlane/device"
)

const (
	// warmup is the time for which the product runs before it is measured. The first product loads
	// kernels, and the clock rate of a GPU takes this long to settle.
	warmup = 300 * time.Millisecond
	// calibrationProducts is the number of products that are timed to find the size of a window.
	calibrationProducts = 8
)

// stage measures the duration of windows of products.
type stage struct {
	product        Product
	windowProducts int
	now            func() time.Time
}

// window is the result of one window.
type window struct {
	took  time.Duration
	moved int64 // bytes that the work moved
}

// enqueue enqueues n products and returns an event for their end.
func (st *stage) enqueue(n int) (device.Event, error) {
	if err := st.product.Enqueue(n); err != nil {
		return nil, err
	}
	return st.product.Record()
}

// calibrate warms up and sets the number of products in a window of the given length.
func (st *stage) calibrate(ctx context.Context, length time.Duration) error {
	for start := st.now(); ; {
		if _, err := st.time(ctx, 1); err != nil {
			return err
		}
		if st.now().Sub(start) >= min(warmup, 10*length) {
			break
		}
	}
	took, err := st.time(ctx, calibrationProducts)
	if err != nil {
		return err
	}
	st.windowProducts = max(1, int(calibrationProducts*length/max(took, 1)))
	return nil
}

// time runs n products and returns their duration.
func (st *stage) time(ctx context.Context, n int) (time.Duration, error) {
	start := st.now()
	e, err := st.enqueue(n)
	if err != nil {
		return 0, err
	}
	defer e.Close()
	if err := e.Wait(ctx); err != nil {
		return 0, err
	}
	return st.now().Sub(start), nil
}

// run runs one window for each element of with, with or without the work. Before each window it
// runs a lead of products in which the work starts or stops. If a window begins before the work has
// started or stopped, it is repeated with a longer lead.
func (st *stage) run(ctx context.Context, t *traffic, with []bool) (windows []window, err error) {
	defer func() { err = errors.Join(err, t.stop()) }()
	lead := max(1, st.windowProducts/2)
	next, err := st.enqueue(4 * lead) // the next lead must be enqueued before a window ends
	if err != nil {
		return nil, err
	}
	defer func() { next.Close() }() // next changes; the owner of the product waits for its work
	for len(windows) < len(with) {
		if err := t.set(ctx, with[len(windows)]); err != nil {
			return nil, err
		}
		w, ready, err := st.window(ctx, t, &next, lead)
		if err != nil {
			return nil, err
		}
		if t.failed() {
			return nil, nil // stop returns the error
		}
		if !ready && lead < 64*st.windowProducts {
			lead *= 2
			continue
		}
		windows = append(windows, w)
	}
	return windows, next.Wait(ctx)
}

// window measures one window. The window begins at *next, the end of its lead. window sets *next to
// the end of the following lead.
func (st *stage) window(ctx context.Context, t *traffic, next *device.Event, lead int) (w window, ready bool, err error) {
	begin := *next
	end, err := st.enqueue(st.windowProducts)
	if err != nil {
		return w, false, err
	}
	defer end.Close()
	after, err := st.enqueue(lead)
	if err != nil {
		return w, false, err
	}
	*next = after
	defer begin.Close()
	if err := begin.Wait(ctx); err != nil {
		return w, false, err
	}
	start, before := st.now(), t.total.Load()
	ready = t.ready()
	if err := end.Wait(ctx); err != nil {
		return w, false, err
	}
	w.took, w.moved = st.now().Sub(start), t.total.Load()-before
	return w, ready, nil
}
