package store

import (
	"sync"
	"sync/atomic"
	"time"
)

// runners are goroutines that run tasks, one at a time each. They stay when a task has ended: a new goroutine begins with a small
// stack, and making it as large as a task needs takes as long as copying a block.
type runners struct {
	idle chan interface{ run() }
	quit chan struct{}
	once sync.Once // closes quit
	wg   sync.WaitGroup
}

func (r *runners) init() {
	r.idle, r.quit = make(chan interface{ run() }), make(chan struct{})
}

// unattended is how long a task may be left to whoever waits for it, and does not come.
const unattended = 200 * time.Microsecond

// vacancy says that no goroutine has a task, whose small copy is under way: to wake one takes longer than it takes somebody to wait. Who
// claims it is the one that goes on with the task. Its zero value: somebody has it.
type vacancy struct {
	vacant atomic.Bool
	later  *time.Timer // sees to it that somebody does
}

// leave vacates the task, and has otherwise called where for a while nobody has claimed it. The task is nobody else's yet.
func (v *vacancy) leave(otherwise func()) {
	v.vacant.Store(true)
	v.later = time.AfterFunc(unattended, otherwise)
}

func (v *vacancy) claim() bool { return v.vacant.CompareAndSwap(true, false) }

// start runs t, by a goroutine that is idle if there is one.
func (r *runners) start(t interface{ run() }) {
	select {
	case r.idle <- t:
	default:
		r.wg.Go(func() { r.run(t) })
	}
}

func (r *runners) run(t interface{ run() }) {
	for {
		t.run()
		t = nil
		select {
		case t = <-r.idle:
		case <-r.quit:
			return
		}
	}
}

// close ends the goroutines, whose tasks have ended. It may be called again.
func (r *runners) close() {
	r.once.Do(func() { close(r.quit) })
	r.wg.Wait()
}
