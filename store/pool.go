package store

import (
	"sync"
	"time"
)

// jobKind says which pool a job runs in, and so what it is.
type jobKind uint8

const (
	jobFetch jobKind = iota + 1 // read a block from a tier below into the cache
	jobCheck                    // compute or verify checksums
	jobWrite                    // write a block to the tiers below
)

// worker is a task that has jobs, one a block.
type worker interface {
	work(kind jobKind, i int32)
}

type job struct {
	w worker
	i int32

	pushed time.Time
}

// pool is a fixed number of goroutines before two queues. Pushing never blocks, so that nobody waits for a pool while
// holding a slot; the queues are bounded by the blocks of the tasks that were admitted.
type pool struct {
	most int              // jobs that a goroutine takes at a time
	do   func(jobs []job) // does what was taken, which is its own only until it returns
	wg   sync.WaitGroup

	mu     sync.Mutex
	wake   *sync.Cond
	soon   fifo // what somebody waits for
	later  fifo // taken only when soon is empty
	closed bool

	waits latency // of jobs for a goroutine
}

// newPool returns a pool of n goroutines that have each job done by its worker.
func newPool(kind jobKind, n int) *pool {
	return newGroupPool(n, 1, func(jobs []job) { jobs[0].w.work(kind, jobs[0].i) })
}

// newGroupPool returns a pool of n goroutines, each of which takes as many of the jobs as there are, up to most, and does them together.
func newGroupPool(n, most int, do func(jobs []job)) *pool {
	p := &pool{most: most, do: do}
	p.wake = sync.NewCond(&p.mu)
	p.wg.Add(n)
	for range n {
		go p.run()
	}
	return p
}

func (p *pool) push(w worker, i int32) { p.pushTo(&p.soon, w, i) }

func (p *pool) pushLater(w worker, i int32) { p.pushTo(&p.later, w, i) }

func (p *pool) pushTo(q *fifo, w worker, i int32) {
	j := job{w, i, time.Now()}
	p.mu.Lock()
	q.push(j)
	p.mu.Unlock()
	p.wake.Signal()
}

// backlog is how many jobs wait.
func (p *pool) backlog() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.soon.n + p.later.n
}

func (p *pool) run() {
	defer p.wg.Done()
	jobs := make([]job, 0, p.most)
	for {
		clear(jobs)
		jobs = jobs[:0]
		p.mu.Lock()
		for p.soon.n == 0 && p.later.n == 0 && !p.closed {
			p.wake.Wait()
		}
		q := &p.soon
		if q.n == 0 {
			q = &p.later
		}
		if q.n == 0 {
			p.mu.Unlock()
			return
		}
		for len(jobs) < p.most && q.n > 0 {
			jobs = append(jobs, q.pop())
		}
		p.mu.Unlock()
		now := time.Now()
		for k := range jobs {
			p.waits.observe(now.Sub(jobs[k].pushed))
		}
		p.do(jobs)
	}
}

// close ends the goroutines once the queues are empty.
func (p *pool) close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.wake.Broadcast()
	p.wg.Wait()
}

// fifo is a ring that grows.
type fifo struct {
	buf     []job
	head, n int
}

func (f *fifo) push(j job) {
	if f.n == len(f.buf) {
		buf := make([]job, max(64, 2*len(f.buf)))
		k := copy(buf, f.buf[f.head:])
		copy(buf[k:], f.buf[:f.head])
		f.buf, f.head = buf, 0
	}
	f.buf[(f.head+f.n)%len(f.buf)] = j
	f.n++
}

func (f *fifo) pop() job {
	j := f.buf[f.head]
	f.buf[f.head] = job{}
	f.head = (f.head + 1) % len(f.buf)
	f.n--
	return j
}
