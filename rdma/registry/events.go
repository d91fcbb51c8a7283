package registry

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/kvlane/kvlane/rdma"
)

// events hands the asynchronous events of a device, of which each is told once, to all who want them.
type events struct {
	quit  context.CancelFunc
	ended chan struct{}

	mu       sync.Mutex
	watchers []*func(rdma.AsyncEvent)
	readErr  error // why there are no more; told once
}

// start begins to read the events of dev, until stop.
func (v *events) start(dev rdma.Device) {
	ctx, quit := context.WithCancel(context.Background())
	v.quit, v.ended = quit, make(chan struct{})
	go v.read(ctx, dev)
}

func (v *events) read(ctx context.Context, dev rdma.Device) {
	defer close(v.ended)
	for {
		e, err := dev.WaitEvent(ctx)
		v.mu.Lock()
		if err != nil && !errors.Is(err, context.Canceled) {
			v.readErr = fmt.Errorf("asynchronous events are not read any more: %w", err)
		}
		all := slices.Clone(v.watchers)
		v.mu.Unlock()
		if err != nil {
			return
		}
		for _, f := range all {
			(*f)(e)
		}
	}
}

// stop ends the reading, and returns why it had ended before, the first time.
func (v *events) stop() error {
	v.quit()
	<-v.ended
	v.mu.Lock()
	defer v.mu.Unlock()
	err := v.readErr
	v.readErr = nil
	return err
}

// Watch has f called with every asynchronous event of the NIC from now on, until stop is called; a call that has begun may
// last longer than that. All watchers are called on one goroutine, one after the other: f must not block.
func (g *Registry) Watch(f func(rdma.AsyncEvent)) (stop func()) {
	v := g.events
	v.mu.Lock()
	defer v.mu.Unlock()
	v.watchers = append(v.watchers, &f)
	return func() {
		v.mu.Lock()
		defer v.mu.Unlock()
		v.watchers = slices.DeleteFunc(v.watchers, func(o *func(rdma.AsyncEvent)) bool { return o == &f })
	}
}
