package store

import "sync"

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
}

// pool is a fixed number of goroutines before two queues. Pushing never blocks, so that nobody waits for a pool while
// holding a slot; the queues are bounded by the blocks of the tasks that were admitted.
type pool struct {
	kind jobKind
	wg   sync.WaitGroup

	mu     sync.Mutex
	wake   *sync.Cond
	soon   fifo // what somebody waits for
	later  fifo // taken only when soon is empty
	closed bool
}

func newPool(kind jobKind, n int) *pool {
	p := &pool{kind: kind}
	p.wake = sync.NewCond(&p.mu)
	p.wg.Add(n)
	for range n {
		go p.run()
	}
	return p
}

func (p *pool) push(j job) {
	p.mu.Lock()
	p.soon.push(j)
	p.mu.Unlock()
	p.wake.Signal()
}

func (p *pool) pushLater(j job) {
	p.mu.Lock()
	p.later.push(j)
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
	for {
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
		j := q.pop()
		p.mu.Unlock()
		j.w.work(p.kind, j.i)
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
