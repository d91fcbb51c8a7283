package replay

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kvlane/kvlane/bench"
	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/present"
	"github.com/kvlane/kvlane/replay/kvcache"
	"github.com/kvlane/kvlane/store"
)

// ErrWrongBytes means that a loaded block had wrong bytes.
var ErrWrongBytes = errors.New("loaded blocks held wrong bytes")

// Run replays the trace and returns a report. After an error during the replay, the report contains
// the requests replayed until then. If ctx ends, Run cancels the transfers in progress and waits
// for them.
//
// The error wraps ErrInvalid if the configuration or the trace is invalid, before the first
// request. Later it wraps ErrWrongBytes, the cause of the first failed dump, or the cause of ctx.
func Run(ctx context.Context, c Config) (_ *Report, err error) {
	c.setDefaults()
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("replay: %w", err)
	}
	if c.Summary == nil {
		if c.Summary, err = Scan(ctx, c.Trace, c.Limit); err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, c.Summary.Close()) }()
	}
	r, err := newRun(c)
	if err != nil {
		return nil, err
	}
	start, before := time.Now(), c.Store.Stats()
	err = r.run(ctx)
	rep, after := r.tally.report(time.Since(start)), c.Store.Stats()
	rep.addStore(&before, &after)
	rep.Trace = c.Trace
	info := c.Device.Info()
	rep.Device = info.Driver + ": " + info.Name
	rep.Machine = bench.NewFacts(info, start)
	rep.Machine.Finish()
	rep.Complete = rep.Requests == int64(r.total)
	rep.Asked = asked(&c, r.cache.BlockBytes())
	return rep, errors.Join(err, r.close(), verdict(rep, r.tally.dumpError()))
}

// verdict returns the error for a report with wrong bytes or failures, or nil. cause is the error
// of the first failed dump.
func verdict(r *Report, cause error) error {
	var errs []error
	if r.Mismatches > 0 {
		errs = append(errs, fmt.Errorf("%d of the %w; %s", r.Mismatches, ErrWrongBytes, r.MismatchSamples[0]))
	}
	if cause != nil {
		errs = append(errs, fmt.Errorf("%d blocks were not stored, of %d dumps; the first: %w", r.DumpErrors, r.DurableErrors, cause))
	}
	return errors.Join(errs...)
}

// run is the state of a replay. newRun allocates its memory and close frees it.
type run struct {
	cfg     Config
	total   int
	cache   *kvcache.Cache
	tally   *tally
	pace    pace
	workers []*worker
	// requests passes requests to the workers in the trace's order. freeRequests returns them for
	// reuse.
	requests, freeRequests chan *queuedRequest
	// pendingDumps is the queue of dumps that are not yet durable.
	pendingDumps chan pendingDump
	// poisoned is the number of poison patterns, so that each one is different.
	poisoned atomic.Uint64
	digest   block.Digest
}

type pendingDump struct {
	task  *store.DumpTask
	line  int
	start time.Time
}

func newRun(c Config) (_ *run, err error) {
	s := c.Summary
	if err := c.Fits(s); err != nil {
		return nil, err
	}
	layout, err := c.Geometry.Layout()
	if err != nil {
		return nil, fmt.Errorf("replay: %w", err)
	}
	r := &run{
		cfg: c, digest: c.Identity.Digest(), total: s.Requests, tally: newTally(), pace: pace{clock: c.Clock, speed: c.Speed},
		requests: make(chan *queuedRequest), freeRequests: make(chan *queuedRequest, c.Concurrency+1), pendingDumps: make(chan pendingDump, c.Backlog),
	}
	if r.cache, err = kvcache.New(c.Device, layout, c.Geometry.PlanesPerLayer(), c.pages(s), c.Seed); err != nil {
		return nil, err
	}
	if c.Memory != nil {
		if err := c.Memory.Register(r.cache.Region()); err != nil {
			// A part of the memory may still be registered; close unregisters it.
			return nil, errors.Join(fmt.Errorf("replay: register the KV cache: %w", err), r.close())
		}
	}
	for range cap(r.freeRequests) {
		r.freeRequests <- &queuedRequest{}
	}
	for range c.Concurrency {
		w, err := newWorker(r, s.MaxBlocks)
		if err != nil {
			return nil, errors.Join(err, r.close())
		}
		r.workers = append(r.workers, w)
	}
	return r, nil
}

// run replays all requests. All of its goroutines have ended when it returns.
func (r *run) run(ctx context.Context) error {
	// The goroutine that waits for durability is not in the group, because it must continue after a
	// failure until the queue of dumps is empty.
	waited := make(chan struct{})
	go func() {
		defer close(waited)
		r.awaitDurable(ctx)
	}()
	group, gctx := errgroup.WithContext(ctx)
	group.Go(func() error { return r.read(gctx) })
	for _, w := range r.workers {
		group.Go(func() error { return w.replayAll(gctx) })
	}
	err := group.Wait()
	close(r.pendingDumps)
	<-waited
	if err != nil && ctx.Err() != nil {
		return fmt.Errorf("replay stopped: %w: %w", context.Cause(ctx), errdefs.ErrCanceled)
	}
	return err
}

// read sends the requests of the trace to the workers.
func (r *run) read(ctx context.Context) (err error) {
	defer close(r.requests)
	t, err := r.cfg.Summary.open(ctx, r.cfg.Trace)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.Close()) }()
	for i := range r.total {
		var req *queuedRequest
		select {
		case req = <-r.freeRequests:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if err := t.Next(&req.Request); errors.Is(err, io.EOF) {
			return fmt.Errorf("trace %s became shorter during the replay; replay a complete file: %w", r.cfg.Trace, errdefs.ErrInvalid)
		} else if err != nil {
			return err
		}
		req.keys = r.appendKeys(req.keys[:0], req.HashIDs)
		if i == 0 {
			r.pace.begin(req)
		}
		if err := r.pace.wait(ctx, req); err != nil {
			return err
		}
		select {
		case r.requests <- req:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// awaitDurable waits until each dump is durable. After ctx has ended, it does not wait; closing the
// store completes these dumps. It adds a note for each tier that did not store all blocks.
func (r *run) awaitDurable(ctx context.Context) {
	var leftOut []store.LeftOut
	defer func() {
		for _, l := range leftOut {
			r.tally.update(func(rep *Report) {
				rep.Notes = append(rep.Notes, fmt.Sprintf("tier %s did not store %s, which other tiers have; the first error: %v", l.Tier, present.Things(int64(l.Blocks), "block"), l.Cause))
			})
		}
	}()
	for d := range r.pendingDumps {
		if ctx.Err() != nil {
			continue
		}
		wait, cancel := context.WithTimeout(ctx, r.cfg.Timeout)
		err := d.task.Durable(wait)
		cancel()
		switch {
		case err == nil:
			r.tally.latency(r.tally.durable, time.Since(d.start))
			leftOut = addLeftOut(leftOut, d.task.LeftOut())
		case ctx.Err() == nil:
			r.tally.failDump(fmt.Errorf("line %d: %w", d.line, firstOf(err)))
		}
	}
}

// firstOf shortens the text of the joined errors of a dump to that of the first block. The result
// wraps the errors of all blocks.
func firstOf(err error) error {
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return err
	}
	list := joined.Unwrap()
	if len(list) < 2 || err.Error() != errors.Join(list...).Error() {
		return err
	}
	return &dumpError{fmt.Sprintf("%v; and %s more", list[0], present.Things(int64(len(list)-1), "block")), err}
}

// dumpError is an error with a shorter text.
type dumpError struct {
	text string
	err  error
}

func (e *dumpError) Error() string { return e.text }
func (e *dumpError) Unwrap() error { return e.err }

// addLeftOut adds list to sum by tier. It keeps the first cause of each tier.
func addLeftOut(sum, list []store.LeftOut) []store.LeftOut {
	for _, l := range list {
		at := slices.IndexFunc(sum, func(s store.LeftOut) bool { return s.Tier == l.Tier })
		if at < 0 {
			sum = append(sum, l)
		} else {
			sum[at].Blocks += l.Blocks
		}
	}
	return sum
}

// finished counts a request and calls Config.Progress.
func (r *run) finished(s Step) {
	r.tally.update(func(rep *Report) { rep.Requests++ })
	if r.cfg.Progress != nil {
		s.Total = r.total
		r.cfg.Progress(s)
	}
}

// close waits until the queues are idle, unregisters the KV cache and frees it. If it fails, it
// does not free memory that may still be accessed.
func (r *run) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), r.cfg.Timeout)
	defer cancel()
	var errs []error
	for _, w := range r.workers {
		errs = append(errs, w.painter.Close(ctx))
	}
	if err := errors.Join(errs...); err != nil {
		// A queue that is not idle may still write to pages.
		return err
	}
	if r.cfg.Memory != nil {
		if err := r.cfg.Memory.Unregister(ctx, r.cache.Region()); err != nil {
			return fmt.Errorf("free the KV cache: %w", err)
		}
	}
	return r.cache.Close()
}

// appendKeys appends the keys of the blocks with the given hash IDs.
func (r *run) appendKeys(keys []block.Key, ids []int64) []block.Key {
	var hash [8]byte
	for _, id := range ids {
		binary.LittleEndian.PutUint64(hash[:], uint64(id))
		keys = append(keys, r.digest.Key(hash[:]))
	}
	return keys
}
