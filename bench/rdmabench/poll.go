package rdmabench

import (
	"context"
	"fmt"
	"runtime"
	"time"

	"github.com/kvlane/kvlane/rdma"
	"github.com/kvlane/kvlane/rdma/channel"
)

// silence is how long a NIC may take for its next completion before it is given up.
const silence = 20 * time.Second

// lookEvery is after how many polls in vain the time is looked at.
const lookEvery = 1024

// ended returns the cause of a context that has ended. It looks at one in so many iterations, as looking takes time. A poller looks only where it
// waits in vain, which a busy NIC does not have it do.
func ended(ctx context.Context, iteration int) error {
	if iteration%signaled == 0 && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return nil
}

// poller takes completions by polling.
type poller struct {
	wcs []rdma.WC
	// alarm, where set, tells of a failure after which nothing may come.
	alarm func() error
}

// wait polls until there are completions, and returns them until it is called next. A completion that failed is an error. It
// gives up when ctx ends, or the NIC is silent for too long.
func (p *poller) wait(ctx context.Context, q rdma.CQ) ([]rdma.WC, error) {
	var since time.Time
	for n := 1; ; n++ {
		got, err := q.Poll(p.wcs)
		if err != nil {
			return nil, err
		}
		for i := range p.wcs[:got] {
			if err := p.wcs[i].Err(); err != nil {
				return nil, err
			}
		}
		if got > 0 {
			return p.wcs[:got], nil
		}
		if n%lookEvery == 0 {
			if ctx.Err() != nil {
				return nil, context.Cause(ctx)
			}
			if p.alarm != nil {
				if err := p.alarm(); err != nil {
					return nil, err
				}
			}
			if since.IsZero() {
				since = time.Now()
			} else if time.Since(since) > silence {
				return nil, fmt.Errorf("nothing has completed for %v: %w", silence, context.DeadlineExceeded)
			}
		}
		runtime.Gosched() // a NIC in software may need the processor
	}
}

// link is a queue pair with a channel of its own, whose completions are polled for.
type link struct {
	*channel.Pair
	channel *channel.Channel // nil: it is not open
	poll    poller
}

func (l *link) open(o channel.Options) (err error) {
	if l.channel, err = channel.Open(o); err != nil {
		return err
	}
	l.Pair, l.poll = l.channel.Pairs[0], poller{wcs: make([]rdma.WC, o.Depth)}
	return nil
}

// completed waits for requests to complete, and returns them until it is called next.
func (l *link) completed(ctx context.Context) ([]rdma.WC, error) {
	n := l.Outstanding()
	wcs, err := l.poll.wait(ctx, l.channel.CQ)
	if err != nil {
		return nil, fmt.Errorf("wait for %d requests: %w", n, err)
	}
	for i := range wcs {
		l.channel.Completed(&wcs[i])
	}
	return wcs, nil
}

// close may be called again after a failure.
func (l *link) close() error {
	if l.channel == nil {
		return nil
	}
	return l.channel.Close()
}
