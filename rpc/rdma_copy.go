package rpc

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/rpc/chain"
)

// copier copies device memory by several queues. It replaces queues that have failed. It is safe
// for concurrent use.
type copier struct {
	dev     device.Device
	queues  chan device.Queue // those that are not in use; nil: not open
	working atomic.Bool       // the last copy that has ended succeeded
}

func newCopier(dev device.Device, queues int) *copier {
	c := &copier{dev: dev, queues: make(chan device.Queue, queues)}
	for range queues {
		c.queues <- nil
	}
	return c
}

// Copy is chain.Copier.Copy. Its errors have the code RDMAFailed.
func (c *copier) Copy(ctx context.Context, dst, src []mem.Extent) error {
	err := c.copy(ctx, dst, src)
	c.working.Store(err == nil)
	if err != nil {
		return &Error{RDMAFailed, "copy from device memory", err}
	}
	return nil
}

func (c *copier) copy(ctx context.Context, dst, src []mem.Extent) (err error) {
	var q device.Queue
	select {
	case q = <-c.queues:
	case <-ctx.Done():
		return fmt.Errorf("all %d queues of the device are in use: %w: %w", cap(c.queues), errdefs.ErrBusy, context.Cause(ctx))
	}
	if q == nil {
		if q, err = c.dev.OpenQueue(device.QueueOptions{HighPriority: true, Events: 1}); err != nil {
			c.queues <- nil
			return err
		}
	}
	err = enqueue(q, dst, src)
	e, errRecord := q.Record()
	if errRecord == nil {
		err = errors.Join(err, e.Wait(ctx))
		if err == nil {
			e.Close()
			c.queues <- q
			return nil
		}
		if ended, _ := e.Done(); ended { // its error is that of Wait
			e.Close()
			_ = q.Close(context.Background()) // likewise; the queue is idle
			c.queues <- nil
			return err
		}
	}
	done := make(chan struct{})
	go c.finish(q, e, done)
	return &chain.PendingError{Cause: errors.Join(err, errRecord), Done: done}
}

func enqueue(q device.Queue, dst, src []mem.Extent) error {
	if b, ok := q.(device.BatchCopier); ok && len(dst) > 1 {
		return b.CopyBatch(dst, src)
	}
	for i := range dst {
		if err := q.Copy(dst[i], src[i]); err != nil {
			return err
		}
	}
	return nil
}

// finish closes done when the queue is idle. It stays open if that remains unknown, as it is after
// the loss of a device. e may be nil.
func (c *copier) finish(q device.Queue, e device.Event, done chan struct{}) {
	idle := false
	if e != nil {
		_ = e.Wait(context.Background()) // Done reports whether the work has ended
		idle, _ = e.Done()
		e.Close()
	}
	if q.Close(context.Background()) == nil || idle {
		close(done)
	}
	c.queues <- nil
}

// close closes the queues. It waits until ctx ends for those in use, and may be called again.
func (c *copier) close(ctx context.Context) error {
	var errs []error
	n := 0
	for ; n < cap(c.queues) && len(errs) == 0; n++ {
		select {
		case q := <-c.queues:
			if q != nil {
				if err := q.Close(ctx); err != nil {
					errs = append(errs, err)
				}
			}
		case <-ctx.Done():
			errs = append(errs, fmt.Errorf("close the queues of a device: %d are in use: %w: %w", cap(c.queues)-n, errdefs.ErrBusy, context.Cause(ctx)))
			n--
		}
	}
	for range n {
		c.queues <- nil
	}
	return errors.Join(errs...)
}
