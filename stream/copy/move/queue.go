package move

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/mem"
)

// Bounds of what a step gives to a queue.
const (
	singleRuns = 64   // copies one by one
	batchRuns  = 256  // copies of a BatchCopier
	chunkRuns  = 2048 // copies of one between staging memory and a host: a layer of so many blocks, which lies in few rows
	batchCalls = 8    // what a batch counts for, and one more for every so many copies of it
	callRuns   = 32
)

// copier copies runs on a queue, many in a call where the driver has such calls.
type copier struct {
	queue device.Queue
	batch device.BatchCopier // the queue, if it can and should; else nil
}

func newCopier(q device.Queue) copier {
	b, _ := q.(device.BatchCopier)
	return copier{queue: q, batch: b}
}

// runs is how many runs one step may have.
func (c copier) runs() int {
	if c.batch != nil {
		return batchRuns
	}
	return singleRuns
}

// chunk is how many runs a chunk of staging memory may have.
func (c copier) chunk() int {
	if c.batch != nil {
		return chunkRuns
	}
	return singleRuns
}

// calls is what copy of n runs counts for.
func (c copier) calls(n int) int {
	if c.batch != nil && n > 1 {
		return batchCalls + n/callRuns
	}
	return min(n, singleRuns)
}

// copy copies runs: several in one call, a single one as a plain copy.
func (c copier) copy(dst, src []mem.Extent) error {
	if c.batch != nil && len(dst) > 1 {
		return c.batch.CopyBatch(dst, src)
	}
	for i := range dst {
		if err := c.queue.Copy(dst[i], src[i]); err != nil {
			return err
		}
	}
	return nil
}

// Record records an event of q. As a record can be what failed, it gets a second chance; the first failure is added to err all
// the same. Without an event it returns nil.
func Record(q device.Queue, err *error) device.Event {
	e, recordErr := q.Record()
	if recordErr == nil {
		return e
	}
	*err = errors.Join(*err, fmt.Errorf("record event: %w", recordErr))
	if e, recordErr = q.Record(); recordErr != nil {
		return nil
	}
	return e
}

// follow puts what q does from now on behind all that other was given so far. The event may be given back at once: q waits for
// the state that it stood for.
func follow(q, other device.Queue) error {
	e, err := other.Record()
	if err != nil {
		return fmt.Errorf("record event: %w", err)
	}
	defer e.Close()
	if err := q.Wait(e); err != nil {
		return fmt.Errorf("wait for the other queue: %w", err)
	}
	return nil
}

// UndoTimeout bounds the closing of queues that are idle: there is nothing to wait for.
const UndoTimeout = 10 * time.Second

// closer is a queue, or another stream.
type closer interface {
	Close(ctx context.Context) error
}

// CloseQueue closes q. What failed may say so when it is closed, and be closed all the same: only the second answer tells.
// The first is failed then.
func CloseQueue(ctx context.Context, q closer) (failed, err error) {
	if failed = q.Close(ctx); failed == nil {
		return nil, nil
	}
	if ctx.Err() != nil || q.Close(ctx) != nil {
		return nil, failed
	}
	return failed, nil
}
