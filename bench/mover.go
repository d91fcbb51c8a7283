package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream"
	"github.com/kvlane/kvlane/stream/copy/measure"
)

// mover copies batches, one set at a time. Its rig closes it.
type mover interface {
	// move submits all batches and waits for them. posted is the end of the submission. After an
	// error the memory may be in use until the mover is closed.
	move(ctx context.Context, batches []mem.Batch) (posted time.Time, err error)
	// last returns the outcome of the last batches.
	last() outcome
}

// outcome is the result of batches.
type outcome struct {
	path      stream.Path   // of the last batch
	predicted time.Duration // sum
	summed    bool          // all batches have their checksums
}

// openMover opens the mover of a contender.
func (b *bench) openMover(c Contender) (mover, error) {
	if c.Baseline == NoBaseline {
		s, err := b.open(c)
		if err != nil {
			return nil, err
		}
		b.rig.OnClose(s.Close)
		return &streamMover{s: s}, nil
	}
	if c.NIC() {
		return b.openChannel(c)
	}
	q, err := b.rig.dev.OpenQueue(device.QueueOptions{})
	if err != nil {
		return nil, fmt.Errorf("open queue: %w", err)
	}
	b.rig.OnClose(q.Close)
	switch c.Baseline {
	case OneCopyEach:
		return &queueMover{q: q, path: stream.PathCopyEngine}, nil
	case DriverBatch:
		batcher, ok := q.(device.BatchCopier)
		if !ok {
			return nil, fmt.Errorf("the driver takes no batches of copies: %w", errdefs.ErrNotSupported)
		}
		return &queueMover{q: q, batcher: batcher, path: stream.PathCopyEngine}, nil
	case NoBaseline, NICChannel, NICSoftChannel:
	}
	return nil, fmt.Errorf("unknown baseline %q: %w", c.Baseline, errdefs.ErrInvalid)
}

// streamMover copies by a stream.
type streamMover struct {
	s       stream.Stream
	jobs    []measure.Job // of the last move
	tickets []*stream.Ticket
}

func (m *streamMover) move(ctx context.Context, batches []mem.Batch) (time.Time, error) {
	var posted time.Time
	var err error
	m.jobs = m.jobs[:0]
	for i := range batches {
		m.jobs = append(m.jobs, measure.Job{By: m.s, Batch: &batches[i]})
	}
	m.tickets, posted, err = measure.Copy(ctx, m.tickets[:0], m.jobs)
	return posted, err
}

func (m *streamMover) last() outcome {
	o := outcome{summed: len(m.tickets) > 0}
	for _, t := range m.tickets {
		c := t.Completion()
		o.path = c.Path
		o.predicted += c.Predicted
		o.summed = o.summed && c.Summed
	}
	return o
}

// queueMover copies the extents of batches by calls of a device's queue.
type queueMover struct {
	q       device.Queue
	batcher device.BatchCopier // nil: one call per copy
	path    stream.Path
}

func (m *queueMover) move(ctx context.Context, batches []mem.Batch) (time.Time, error) {
	for i := range batches {
		if err := m.post(&batches[i]); err != nil {
			return time.Now(), err
		}
	}
	e, err := m.q.Record()
	posted := time.Now()
	if err != nil {
		return posted, err
	}
	defer e.Close()
	return posted, e.Wait(ctx)
}

func (m *queueMover) post(b *mem.Batch) error {
	if m.batcher != nil {
		for from := 0; from < len(b.Dst); from += DriverBatchCopies {
			to := min(from+DriverBatchCopies, len(b.Dst))
			if err := m.batcher.CopyBatch(b.Dst[from:to], b.Src[from:to]); err != nil {
				return err
			}
		}
		return nil
	}
	for i := range b.Dst {
		if err := m.q.Copy(b.Dst[i], b.Src[i]); err != nil {
			return err
		}
	}
	return nil
}

func (m *queueMover) last() outcome { return outcome{path: m.path} }

// crew moves the batches of one plan, or of two at once.
type crew struct {
	movers []mover
	plans  []*plan
	post   time.Duration // duration of the first mover's submission

	// The second mover has a goroutine of its own, so that the submission of one batch does not
	// delay the other.
	begin chan struct{}
	ended chan error
}

// newCrew takes one mover for each plan.
func newCrew(ctx context.Context, movers []mover, plans []*plan) *crew {
	c := &crew{movers: movers[:len(plans)], plans: plans}
	if len(plans) > 1 {
		c.begin, c.ended = make(chan struct{}), make(chan error)
		go func() {
			defer close(c.ended)
			for range c.begin {
				_, err := movers[1].move(ctx, plans[1].Batches())
				c.ended <- err
			}
		}()
	}
	return c
}

// dismiss stops the goroutine and waits for it.
func (c *crew) dismiss() {
	if c.begin != nil {
		close(c.begin)
		for range c.ended { // closed by the goroutine
		}
	}
}

// move moves all batches and returns the duration.
func (c *crew) move(ctx context.Context) (time.Duration, error) {
	start := time.Now()
	if c.begin != nil {
		c.begin <- struct{}{}
	}
	posted, err := c.movers[0].move(ctx, c.plans[0].Batches())
	c.post = posted.Sub(start)
	if c.begin != nil {
		err = errors.Join(err, <-c.ended)
	}
	return time.Since(start), err
}

func (c *crew) bytes() int64 {
	var n int64
	for _, p := range c.plans {
		n += p.Bytes()
	}
	return n
}
