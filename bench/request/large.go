package request

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kvlane/kvlane/bench"
	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/mem"
)

// large makes the large copies C in each direction, and in both directions concurrently. It has its
// own queues.
type large struct {
	in, out device.Queue
	toDevice,
	toHost [2]mem.Extent // destination and source
}

func newLarge(r *rig) (*large, error) {
	dev, n := r.engine.Device(), r.o.LargeBytes
	far, err := dev.Alloc(2*n, device.AllocOptions{})
	if err != nil {
		return nil, fmt.Errorf("allocate device memory for the large copy: %w", err)
	}
	r.onClose(func(context.Context) error { return dev.Free(far) })
	l := &large{
		toDevice: [2]mem.Extent{{Region: far, Len: n}, {Region: r.host, Len: n}},
		toHost:   [2]mem.Extent{{Region: r.host, Off: n, Len: n}, {Region: far, Off: n, Len: n}},
	}
	for _, q := range []*device.Queue{&l.in, &l.out} {
		if *q, err = dev.OpenQueue(device.QueueOptions{}); err != nil {
			return nil, fmt.Errorf("open queue: %w", err)
		}
		r.onClose((*q).Close)
	}
	return l, nil
}

// sample makes a large copy for a kind of work and returns its rate.
func (l *large) sample(ctx context.Context, w Work) (float64, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var events [2]device.Event
	var bytes int64
	var err error
	begin := time.Now()
	for i, c := range []struct {
		q    device.Queue
		copy [2]mem.Extent
		not  Work
	}{{l.in, l.toDevice, Dump}, {l.out, l.toHost, Load}} {
		if w == c.not || err != nil {
			continue
		}
		bytes += c.copy[0].Len
		if err = c.q.Copy(c.copy[0], c.copy[1]); err == nil {
			events[i], err = c.q.Record()
		}
	}
	for _, e := range events {
		if e != nil {
			err = errors.Join(err, e.Wait(ctx))
			e.Close()
		}
	}
	if err != nil {
		return 0, fmt.Errorf("one large copy: %w", err)
	}
	return bench.GBps(bytes, time.Since(begin)), nil
}
