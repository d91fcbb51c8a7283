// Package pool runs the tasks of a store and their jobs in bounded or reused goroutines, and lets
// goroutines wait for progress.
package pool

import (
	"sync"
	"time"

	"github.com/kvlane/kvlane/store/stat"
)

// Job is a unit of work. Run receives the index that was passed to Push.
type Job interface{ Run(i int32) }

// Item is a queued job.
type Item struct {
	Job   Job
	Index int32

	pushedAt time.Time
}

// Pool runs jobs in a fixed number of goroutines. Its queues are unbounded, so that Push never
// blocks: a goroutine that holds a slot and waits for the pool could wait forever. The callers
// bound the number of jobs.
type Pool struct {
	maxItems int
	do       func(items []Item)
	wg       sync.WaitGroup

	mu      sync.Mutex
	wake    *sync.Cond
	urgent  fifo
	delayed fifo // taken only while urgent is empty
	closed  bool

	waits stat.Histogram
}

// New returns a pool of n goroutines that call Job.Run.
func New(n int) *Pool {
	return NewGrouped(n, 1, func(items []Item) { items[0].Job.Run(items[0].Index) })
}

// NewGrouped returns a pool of n goroutines. Each takes up to maxItems queued jobs at a time and
// passes them to do, which must not keep the slice.
func NewGrouped(n, maxItems int, do func(items []Item)) *Pool {
	p := &Pool{maxItems: maxItems, do: do}
	p.wake = sync.NewCond(&p.mu)
	p.wg.Add(n)
	for range n {
		go p.run()
	}
	return p
}

// Push queues a job.
func (p *Pool) Push(j Job, i int32) { p.push(&p.urgent, j, i) }

// PushDelayed queues a job that starts only when no job of Push is queued.
func (p *Pool) PushDelayed(j Job, i int32) { p.push(&p.delayed, j, i) }

func (p *Pool) push(q *fifo, j Job, i int32) {
	item := Item{j, i, time.Now()}
	p.mu.Lock()
	q.push(item)
	p.mu.Unlock()
	p.wake.Signal()
}

// Backlog returns the number of queued jobs.
func (p *Pool) Backlog() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.urgent.n + p.delayed.n
}

// Waits returns the distribution of the times that jobs were queued.
func (p *Pool) Waits() stat.Latency { return p.waits.Read() }

func (p *Pool) run() {
	defer p.wg.Done()
	items := make([]Item, 0, p.maxItems)
	for {
		clear(items)
		if items = p.take(items[:0]); len(items) == 0 {
			return
		}
		now := time.Now()
		for k := range items {
			p.waits.Observe(now.Sub(items[k].pushedAt))
		}
		p.do(items)
	}
}

// take appends queued jobs to items. It blocks while the queues are empty. It returns no jobs if
// the pool is closed and the queues are empty.
func (p *Pool) take(items []Item) []Item {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.urgent.n == 0 && p.delayed.n == 0 && !p.closed {
		p.wake.Wait()
	}
	q := &p.urgent
	if q.n == 0 {
		q = &p.delayed
	}
	for len(items) < p.maxItems && q.n > 0 {
		items = append(items, q.pop())
	}
	return items
}

// Close waits until all queued jobs have run and stops the goroutines.
func (p *Pool) Close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.wake.Broadcast()
	p.wg.Wait()
}

// fifo is a growing ring buffer.
type fifo struct {
	buf     []Item
	head, n int
}

func (f *fifo) push(item Item) {
	if f.n == len(f.buf) {
		buf := make([]Item, max(64, 2*len(f.buf)))
		k := copy(buf, f.buf[f.head:])
		copy(buf[k:], f.buf[:f.head])
		f.buf, f.head = buf, 0
	}
	f.buf[(f.head+f.n)%len(f.buf)] = item
	f.n++
}

func (f *fifo) pop() Item {
	item := f.buf[f.head]
	f.buf[f.head] = Item{}
	f.head = (f.head + 1) % len(f.buf)
	f.n--
	return item
}

// Runner is a task that Runners execute.
type Runner interface{ Run() }

// Runners runs each task in a separate goroutine. Goroutines are reused, because growing the stack
// of a new goroutine takes as long as copying a block.
type Runners struct {
	idle chan Runner
	quit chan struct{}
	once sync.Once // closes quit
	wg   sync.WaitGroup
}

// NewRunners returns a Runners without idle goroutines.
func NewRunners() *Runners {
	return &Runners{idle: make(chan Runner), quit: make(chan struct{})}
}

// Start runs t in an idle goroutine or a new one.
func (r *Runners) Start(t Runner) {
	select {
	case r.idle <- t:
	default:
		r.wg.Go(func() { r.run(t) })
	}
}

func (r *Runners) run(t Runner) {
	for {
		t.Run()
		t = nil
		select {
		case t = <-r.idle:
		case <-r.quit:
			return
		}
	}
}

// Close stops the goroutines. All tasks must have ended. Close may be called again.
func (r *Runners) Close() {
	r.once.Do(func() { close(r.quit) })
	r.wg.Wait()
}

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
