package pool

import "sync"

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
