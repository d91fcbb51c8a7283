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

// mover copies batches, one set at a time. The rig closes it.
type mover interface {
	// move submits all batches and waits for them. posted is the time at which the submission was
	// complete. After an error the memory may be in use until the mover is closed.
	move(ctx context.Context, batches []mem.Batch) (posted time.Time, err error)
	// last returns the outcome of the last call of move.
	last() outcome
}

// outcome is the result of a set of batches.
type outcome struct {
	path      stream.Path   // path of the last batch
	predicted time.Duration // sum of the predicted times
	summed    bool          // checksums of all batches were computed
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

// streamMover copies with a stream.
type streamMover struct {
	s       stream.Stream
	jobs    []measure.Job // jobs of the last move
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

// queueMover copies extents with calls of a device's queue.
type queueMover struct {
	q       device.Queue
	batcher device.BatchCopier // nil: one call for each copy
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

// planRunner runs the batches of one plan, or of two plans concurrently.
type planRunner struct {
	movers []mover
	plans  []*plan
	post   time.Duration // duration of the submission by the first mover

	// The second mover has its own goroutine, so that the submission of one batch does not delay
	// the other.
	begin chan struct{}
	ended chan error
}

// newPlanRunner returns a planRunner with one mover for each plan.
func newPlanRunner(ctx context.Context, movers []mover, plans []*plan) *planRunner {
	c := &planRunner{movers: movers[:len(plans)], plans: plans}
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

// stop stops the goroutine and waits for it.
func (c *planRunner) stop() {
	if c.begin != nil {
		close(c.begin)
		for range c.ended { // the goroutine closes it
		}
	}
}

// move runs all batches and returns the duration.
func (c *planRunner) move(ctx context.Context) (time.Duration, error) {
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

func (c *planRunner) bytes() int64 {
	var n int64
	for _, p := range c.plans {
		n += p.Bytes()
	}
	return n
}
