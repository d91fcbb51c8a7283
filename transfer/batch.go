package transfer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
)

// SubmitOptions are the options of a batch.
type SubmitOptions struct {
	// Timeout is the maximum duration of the batch, including the wait for After. Zero: the
	// engine's Options.Timeout.
	Timeout time.Duration
	// After lists dependencies that must resolve before the transfer starts. If one fails, the
	// batch fails.
	After []mem.Dependency
	// Notify is delivered to the engine of every segment of the batch after all bytes have arrived.
	// Optional.
	Notify []byte
	// Path forces a path; if it fails, the batch fails. PathNone: any path.
	Path Path
}

// Batch is a list of tasks that complete together. It implements mem.Dependency.
type Batch struct {
	e      *Engine
	o      SubmitOptions
	ctx    context.Context
	cancel context.CancelCauseFunc
	done   chan struct{}
	tasks  []Task

	mu        sync.Mutex
	results   []TaskResult
	remaining []int // number of unfinished parts of each task
	status    Status
	err       error
	comp      Completion
}

// Submit starts a batch. It accepts all tasks or none. It returns ErrInvalid if memory is not
// registered or cannot be transferred, and ErrClosed after Close. It blocks while Options.Batches
// batches are unresolved, until ctx ends. ctx does not affect an accepted batch. The order of the
// tasks is undefined. The slices and the local memory must not be changed until the batch is done.
func (e *Engine) Submit(ctx context.Context, tasks []Task, o SubmitOptions) (*Batch, error) {
	b, err := e.submit(ctx, tasks, o)
	if err != nil {
		return nil, fmt.Errorf("submit batch: %w", err)
	}
	return b, nil
}

func (e *Engine) submit(ctx context.Context, tasks []Task, o SubmitOptions) (*Batch, error) {
	if o.Timeout < 0 || o.Path >= paths || len(o.Notify) > MaxNoticeBytes {
		return nil, fmt.Errorf("a timeout of %v, by %s, with a notification of %d bytes: %w", o.Timeout, o.Path, len(o.Notify), errdefs.ErrInvalid)
	}
	o.Timeout = cmp.Or(o.Timeout, e.o.Timeout)
	for i := range tasks {
		if _, err := tasks[i].validate(e); err != nil {
			return nil, fmt.Errorf("task %d: %w", i, err)
		}
	}
	select {
	case e.batches <- struct{}{}:
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for one of %d batches: %w", e.o.Batches, context.Cause(ctx))
	}
	b := &Batch{e: e, o: o, done: make(chan struct{}), tasks: tasks, results: make([]TaskResult, len(tasks)), remaining: make([]int, len(tasks))}
	if err := b.admit(); err != nil {
		<-e.batches
		return nil, err
	}
	b.ctx, b.cancel = context.WithCancelCause(e.ctx)
	go b.run()
	return b, nil
}

// admit counts the batch in the engine and in its segments. On error it undoes this.
func (b *Batch) admit() error {
	remotes := b.remotes()
	for i, r := range remotes {
		if err := r.use(); err != nil {
			for _, r := range remotes[:i] {
				r.unuse()
			}
			return err
		}
	}
	b.e.mu.Lock()
	defer b.e.mu.Unlock()
	if b.e.closed {
		for _, r := range remotes {
			r.unuse()
		}
		return fmt.Errorf("transfer engine: %w", errdefs.ErrClosed)
	}
	b.e.unresolved.Add(1)
	return nil
}

// remotes returns the segments of the batch.
func (b *Batch) remotes() (all []*Remote) {
	for i := range b.tasks {
		if r := b.tasks[i].Segment; !slices.Contains(all, r) {
			all = append(all, r)
		}
	}
	return all
}

// run executes the batch and resolves it.
func (b *Batch) run() {
	defer b.e.unresolved.Done()
	ctx, cancel := context.WithTimeoutCause(b.ctx, b.o.Timeout, fmt.Errorf("it took longer than %v: %w", b.o.Timeout, context.DeadlineExceeded))
	defer cancel()
	remotes := b.remotes()
	err := b.waitDependencies(ctx)
	if err == nil {
		b.begin()
		err = b.move(ctx, remotes)
	} else {
		b.failAll(err)
	}
	if err == nil && b.o.Notify != nil {
		err = b.notify(ctx, remotes)
	}
	for _, r := range remotes {
		r.unuse()
	}
	b.mu.Lock()
	b.status, b.err, b.comp.Finished = statusFor(err), err, time.Now()
	b.e.carried.add(b.results, &b.comp.Bytes)
	b.mu.Unlock()
	b.cancel(nil)
	<-b.e.batches
	close(b.done)
}

// waitDependencies waits for SubmitOptions.After.
func (b *Batch) waitDependencies(ctx context.Context) error {
	for _, d := range b.o.After {
		select {
		case <-d.Done():
			if err := d.Err(); err != nil {
				return fmt.Errorf("dependency: %w", err)
			}
		case <-ctx.Done():
			return fmt.Errorf("wait for dependencies: %w", context.Cause(ctx))
		}
	}
	return nil
}

func (b *Batch) begin() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.status, b.comp.Started = StatusPending, time.Now()
	for i := range b.results {
		b.results[i].Status = StatusPending
	}
}

// move executes the tasks with one goroutine for each segment. It returns an error if a task
// failed.
func (b *Batch) move(ctx context.Context, remotes []*Remote) error {
	var groups []*group
	for _, r := range remotes {
		c := cutter{e: b.e}
		for i := range b.tasks {
			if b.tasks[i].Segment != r {
				continue
			}
			if err := c.add(i, &b.tasks[i]); err != nil {
				b.failAll(err)
				return err
			}
		}
		groups = append(groups, newGroup(b, r, c.parts))
	}
	b.mu.Lock()
	for _, g := range groups {
		for _, p := range g.todo {
			for _, i := range p.tasks {
				b.remaining[i]++
			}
		}
	}
	for i, n := range b.remaining {
		if n == 0 {
			b.results[i].Status = StatusCompleted
		}
	}
	b.mu.Unlock()
	var moving sync.WaitGroup
	for _, g := range groups {
		moving.Go(func() { g.run(ctx) })
	}
	moving.Wait()
	return b.verdict()
}

// verdict returns an error with the first failure and the number of failed tasks, or nil if none
// failed.
func (b *Batch) verdict() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	n, first := 0, -1
	for i := range b.results {
		if b.results[i].Err != nil {
			if n++; first < 0 {
				first = i
			}
		}
	}
	if n == 0 {
		return nil
	}
	return fmt.Errorf("%d of %d tasks failed, the first task %d: %w", n, len(b.results), first, b.results[first].Err)
}

func (b *Batch) failAll(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := range b.results {
		b.results[i] = TaskResult{Status: statusFor(err), Err: err}
	}
}

// partDone records the result of a part. The last part of a task completes it.
func (b *Batch) partDone(p *part, path Path, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err == nil {
		b.comp.Bytes[path] += p.bytes
	}
	for _, i := range p.tasks {
		r := &b.results[i]
		if path != PathNone {
			r.Path = path
		}
		if err != nil && r.Err == nil {
			r.Err = err
		}
		if b.remaining[i]--; b.remaining[i] == 0 {
			r.Status = statusFor(r.Err)
		}
	}
}

// recordFallback records the reason for which a path was not used.
func (b *Batch) recordFallback(err error) {
	b.e.carried.fallbacks.Add(1)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.comp.Fallback = err
}

func (b *Batch) countRetry() {
	b.e.counters.retries.Add(1)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.comp.Retries++
}

// notify delivers the notification once to each segment. It retries until ctx ends.
func (b *Batch) notify(ctx context.Context, remotes []*Remote) error {
	for _, r := range remotes {
		// The number is different for each segment, because two segments may belong to one engine.
		q := notifyRequest{Number: b.e.notifyID.Add(1), Segment: r.name, Body: b.o.Notify}
		for wait := 5 * time.Millisecond; ; wait = min(2*wait, time.Second) {
			// An earlier batch may have failed and left a connection that is not fenced.
			err := r.p.fence(ctx)
			if err == nil {
				err = r.p.call(ctx, callNotify, q, nil)
			}
			if err == nil {
				break
			}
			if conclusive(err) || !pause(ctx, wait) {
				return fmt.Errorf("the data arrived, and the notification of segment %q may not have: %w", r.name, errors.Join(context.Cause(ctx), err))
			}
		}
	}
	return nil
}

func statusFor(err error) Status {
	switch {
	case err == nil:
		return StatusCompleted
	case errors.Is(err, errdefs.ErrCanceled):
		return StatusCanceled
	case errors.Is(err, context.DeadlineExceeded):
		return StatusTimeout
	}
	return StatusFailed
}

// Done returns a channel that is closed when the batch is done. Then its local memory is no longer
// accessed.
func (b *Batch) Done() <-chan struct{} { return b.done }

// Err returns the error of the batch, or nil. It is valid once Done is closed.
func (b *Batch) Err() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.err
}

// Wait waits until the batch is done and returns its error. If ctx ends first, Wait returns and the
// batch continues.
func (b *Batch) Wait(ctx context.Context) error {
	select {
	case <-b.done:
		return b.Err()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Cancel ends the batch early. Unfinished tasks fail with ErrCanceled. The batch is done when its
// local memory is no longer accessed.
func (b *Batch) Cancel() { b.cancel(fmt.Errorf("the batch: %w", errdefs.ErrCanceled)) }

// Status returns the state of the batch.
func (b *Batch) Status() Status {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.status
}

// Task returns the state of a task. The memory of a task with a final status is no longer accessed.
func (b *Batch) Task(i int) TaskResult {
	b.mu.Lock()
	defer b.mu.Unlock()
	r := b.results[i]
	if b.remaining[i] > 0 {
		r.Err = nil // the error is reported with the final status
	}
	return r
}

// Completion returns the statistics of the batch. It is valid once Done is closed.
func (b *Batch) Completion() Completion {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.comp
}
