package ibv

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/internal/sys/ibverbs"
	"github.com/kvlane/kvlane/rdma"
)

// CompChannel implements rdma.CompChannel.
type CompChannel struct {
	object
	dev    *Device
	native ibverbs.CompChannel
	events *watch
}

// CreateCompChannel implements rdma.Device.
func (d *Device) CreateCompChannel() (rdma.CompChannel, error) {
	fail := func(err error) (rdma.CompChannel, error) {
		return nil, fmt.Errorf("create completion channel of %s: %w", d.what, err)
	}
	if err := d.adopt(); err != nil {
		return fail(err)
	}
	native, fd, errno := d.api.CreateCompChannel(d.ctx)
	if err := check(errno, "ibv_create_comp_channel", "device=%s", d.info.Name); err != nil {
		d.release()
		return fail(err)
	}
	events, err := newWatch(fd, d.info.Name+" completion channel")
	if err != nil {
		err = errors.Join(err, check(d.api.DestroyCompChannel(native), "ibv_destroy_comp_channel", "fd=%d", fd))
		d.release()
		return fail(err)
	}
	c := &CompChannel{dev: d, native: native, events: events}
	c.open("completion channel of %s", d.info.Name)
	return c, nil
}

// Wait implements rdma.CompChannel.
func (c *CompChannel) Wait(ctx context.Context) (rdma.CQ, error) {
	var q *CQ
	err := c.events.wait(ctx, func() (bool, error) {
		for q == nil { // events of a queue that is being closed are dropped
			native, errno := c.dev.api.GetCQEvent(c.native)
			if errno == unix.EAGAIN {
				return false, nil
			}
			if err := check(errno, "ibv_get_cq_event", "device=%s", c.dev.info.Name); err != nil {
				return false, err
			}
			// The library keeps the queue alive until the event is acknowledged.
			q = c.dev.cqOf(native)
			c.dev.api.AckCQEvents(native, 1)
		}
		return true, nil
	})
	if err != nil {
		return nil, fmt.Errorf("wait on %s: %w", c.what, err)
	}
	return q, nil
}

// Close implements rdma.CompChannel.
func (c *CompChannel) Close() error {
	return c.close(func() error {
		if err := c.events.close(); err != nil {
			return err
		}
		return check(c.dev.api.DestroyCompChannel(c.native), "ibv_destroy_comp_channel", "device=%s", c.dev.info.Name)
	}, func() error {
		c.dev.release()
		return nil
	})
}

func (c *CompChannel) deviceOf() *Device { return c.dev }
