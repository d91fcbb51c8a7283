package move

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/mem"
)

// Bounds of the work that a step adds to a queue.
const (
	singleRuns = 64  // copies without a BatchCopier
	batchRuns  = 256 // copies of a BatchCopier
	// chunkRuns is the maximum number of copies of a BatchCopier between staging memory and a host:
	// a layer of that many blocks, which lie in few rows.
	chunkRuns = 2048
	// A call for several copies counts as batchCalls calls, plus one for every callRuns copies.
	batchCalls = 8
	callRuns   = 32
)

// copier copies runs on a queue, with many copies per call if the driver supports that.
type copier struct {
	queue device.Queue
	batch device.BatchCopier // the queue if it is a BatchCopier, or nil
}

func newCopier(q device.Queue) copier {
	b, _ := q.(device.BatchCopier)
	return copier{queue: q, batch: b}
}

// runs returns the maximum number of runs of one step.
func (c copier) runs() int {
	if c.batch != nil {
		return batchRuns
	}
	return singleRuns
}

// chunk returns the maximum number of runs of a chunk of staging memory.
func (c copier) chunk() int {
	if c.batch != nil {
		return chunkRuns
	}
	return singleRuns
}

// calls returns the number of calls as which a copy of n runs counts.
func (c copier) calls(n int) int {
	if c.batch != nil && n > 1 {
		return batchCalls + n/callRuns
	}
	return min(n, singleRuns)
}

// copy copies runs, several of them in one call if the queue is a BatchCopier.
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

// Record records an event on q. If that fails, it adds the error to err and tries once more,
// because only the first attempt may report an earlier failure. It returns nil if there is no
// event.
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

// follow orders later work of q after all present work of other. The event is closed at once,
// because q waits for the state that it has captured.
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

// UndoTimeout bounds the time for closing idle queues.
const UndoTimeout = 10 * time.Second

// closer is a queue, or another stream.
type closer interface {
	Close(ctx context.Context) error
}

// CloseQueue closes q. If q has failed, its Close may return the failure although q is closed; a
// second call of Close then returns nil, and CloseQueue returns the first error as failed.
func CloseQueue(ctx context.Context, q closer) (failed, err error) {
	if failed = q.Close(ctx); failed == nil {
		return nil, nil
	}
	if ctx.Err() != nil || q.Close(ctx) != nil {
		return nil, failed
	}
	return failed, nil
}
