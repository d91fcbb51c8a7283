package replay

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kvlane/kvlane/bench"
	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/replay/kvcache"
	"github.com/kvlane/kvlane/store"
)

// ErrWrongBytes is the error of a replay in which a loaded block held a wrong byte.
var ErrWrongBytes = errors.New("loaded blocks held wrong bytes")

// Run replays the trace and returns what it did. The report is there whenever the replay began, also with an error, and
// then covers the requests that were replayed until then. A canceled context ends the replay in order: transfers under
// way are canceled and waited for.
//
// Errors: ErrInvalid for a bad configuration or trace, found before the first request; ErrWrongBytes; whatever kept
// blocks from being stored; the context's cause.
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

// verdict turns what a report counted into the error that the replay ends with. cause is why the first dump failed.
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

// run is one replay. It is made by newRun and taken apart by close.
type run struct {
	cfg     Config
	total   int
	cache   *kvcache.Cache
	tally   *tally
	pace    pace
	workers []*worker
	// requests go to the workers in the trace's order; spare brings their memory back to the reader.
	requests, spare chan *turn
	// behind holds the dumps that are not known to be durable.
	behind chan pendingDump
	// poisoned numbers the poisons, so that no two are alike.
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
		requests: make(chan *turn), spare: make(chan *turn, c.Concurrency+1), behind: make(chan pendingDump, c.Backlog),
	}
	if r.cache, err = kvcache.New(c.Device, layout, c.Geometry.PlanesPerLayer(), c.pages(s), c.Seed); err != nil {
		return nil, err
	}
	if c.Memory != nil {
		if err := c.Memory.Register(r.cache.Region()); err != nil {
			return nil, errors.Join(fmt.Errorf("replay: register the KV cache: %w", err), r.close()) // a part of it may be registered still
		}
	}
	for range cap(r.spare) {
		r.spare <- &turn{}
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

// run returns when every goroutine has ended.
func (r *run) run(ctx context.Context) error {
	// The one who waits for durability is not of the group: he goes on after a failure, for as long as there are dumps.
	waited := make(chan struct{})
	go func() {
		defer close(waited)
		r.awaitDurable(ctx)
	}()
	group, gctx := errgroup.WithContext(ctx)
	group.Go(func() error { return r.read(gctx) })
	for _, w := range r.workers {
		group.Go(func() error { return w.work(gctx) })
	}
	err := group.Wait()
	close(r.behind)
	<-waited
	if err != nil && ctx.Err() != nil {
		return fmt.Errorf("replay stopped: %w: %w", context.Cause(ctx), errdefs.ErrCanceled)
	}
	return err
}

// read hands the trace's requests to the workers.
func (r *run) read(ctx context.Context) (err error) {
	defer close(r.requests)
	t, err := r.cfg.Summary.open(ctx, r.cfg.Trace)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.Close()) }()
	for i := range r.total {
		var req *turn
		select {
		case req = <-r.spare:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if err := t.Next(&req.Request); errors.Is(err, io.EOF) {
			return fmt.Errorf("trace %s became shorter while it was read; replay one that nobody writes to: %w", r.cfg.Trace, errdefs.ErrInvalid)
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

// awaitDurable waits for each dump to become durable. A canceled replay stops waiting; the store's Close finishes them.
func (r *run) awaitDurable(ctx context.Context) {
	for d := range r.behind {
		if ctx.Err() != nil {
			continue
		}
		wait, cancel := context.WithTimeout(ctx, r.cfg.Timeout)
		err := d.task.Durable(wait)
		cancel()
		switch {
		case err == nil:
			r.tally.latency(r.tally.durable, time.Since(d.start))
		case ctx.Err() == nil:
			r.tally.failDump(fmt.Errorf("line %d: %w", d.line, err))
		}
	}
}

// finished counts a request and tells the progress.
func (r *run) finished(s Step) {
	r.tally.update(func(rep *Report) { rep.Requests++ })
	if r.cfg.Progress != nil {
		s.Total = r.total
		r.cfg.Progress(s)
	}
}

// close frees what the run holds once nothing touches it any more.
func (r *run) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), r.cfg.Timeout)
	defer cancel()
	var errs []error
	for _, w := range r.workers {
		errs = append(errs, w.painter.Close(ctx))
	}
	if err := errors.Join(errs...); err != nil {
		// A queue that is not idle may still write pages.
		return err
	}
	if r.cfg.Memory != nil {
		if err := r.cfg.Memory.Unregister(ctx, r.cache.Region()); err != nil {
			return fmt.Errorf("free the KV cache: %w", err)
		}
	}
	return r.cache.Close()
}

// appendKeys appends the keys of the blocks with these hash ids.
func (r *run) appendKeys(keys []block.Key, ids []int64) []block.Key {
	var hash [8]byte
	for _, id := range ids {
		binary.LittleEndian.PutUint64(hash[:], uint64(id))
		keys = append(keys, r.digest.Key(hash[:]))
	}
	return keys
}
