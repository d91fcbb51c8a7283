package pool

import "sync"

// Watermark lets goroutines wait until a counter exceeds a value. The counter never decreases. The
// zero value is ready for use.
type Watermark struct {
	mu      sync.Mutex
	n       int
	waiters map[int]chan struct{} // by value: closed and removed when n exceeds it
}

// Value returns the counter.
func (w *Watermark) Value() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.n
}

// Advance raises the counter to n and reports whether it was lower.
func (w *Watermark) Advance(n int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if n <= w.n {
		return false
	}
	w.n = n
	for k, c := range w.waiters {
		if k < n {
			close(c)
			delete(w.waiters, k)
		}
	}
	return true
}

// closedChan is returned for values that are already exceeded.
var closedChan = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// Exceeded returns a channel that is closed when the counter exceeds k.
func (w *Watermark) Exceeded(k int) <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	if k < w.n {
		return closedChan
	}
	if w.waiters == nil {
		w.waiters = make(map[int]chan struct{})
	}
	c := w.waiters[k]
	if c == nil {
		c = make(chan struct{})
		w.waiters[k] = c
	}
	return c
}
