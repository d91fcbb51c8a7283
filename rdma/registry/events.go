package registry

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/kvlane/kvlane/rdma"
)

// events passes each asynchronous event of a device to all watchers.
type events struct {
	quit  context.CancelFunc
	ended chan struct{}

	mu       sync.Mutex
	watchers []*func(rdma.AsyncEvent)
	readErr  error // error that ended reading; stop returns it once
}

// start starts a goroutine that reads the events of dev.
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
			v.readErr = fmt.Errorf("asynchronous events are no longer read: %w", err)
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

// stop stops reading. The first call returns the error that had already ended the reading, if any.
func (v *events) stop() error {
	v.quit()
	<-v.ended
	v.mu.Lock()
	defer v.mu.Unlock()
	err := v.readErr
	v.readErr = nil
	return err
}

// Watch calls f for every asynchronous event of the NIC until stop is called. A call of f may still
// be in progress when stop returns. One goroutine calls all watchers, so f must not block.
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
