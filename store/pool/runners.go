package pool

import "sync"

// Runner is a task that Run completes.
type Runner interface{ Run() }

// Runners run tasks, each by a goroutine of its own. Goroutines are reused: growing the stack of a
// new goroutine takes as long as copying a block.
type Runners struct {
	idle chan Runner
	quit chan struct{}
	once sync.Once // closes quit
	wg   sync.WaitGroup
}

// NewRunners returns Runners without goroutines.
func NewRunners() *Runners {
	return &Runners{idle: make(chan Runner), quit: make(chan struct{})}
}

// Start runs t by an idle goroutine, or a new one.
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

// Close stops the goroutines. All tasks must have ended. It may be called again.
func (r *Runners) Close() {
	r.once.Do(func() { close(r.quit) })
	r.wg.Wait()
}
