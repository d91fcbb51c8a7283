package store

import "sync"

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
