package replay

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/replay/kvcache"
	"github.com/kvlane/kvlane/store"
)

// worker replays one request at a time. Its buffers are reused for the next request.
type worker struct {
	run     *run
	painter *kvcache.Painter
	all     kvcache.Span

	keys       []block.Key
	pages      []uint32
	seeds      []uint64
	mismatched []int64
	tiers      []string // tier of each leased block
	errs       []error  // error of each leased block, or nil if it was loaded
	// unjudged is set from the load of a prefix until judge has counted its blocks.
	unjudged bool
	step     Step // result of the current request
	// load has the blocks to load. compute has the blocks to compute and dump.
	load, compute blockSet
}

// blockSet is a subset of a request's blocks.
type blockSet struct {
	at    []int // positions in the request
	refs  []store.Ref
	pages []uint32
	seeds []uint64
}

func (s *blockSet) reset() {
	s.at, s.refs, s.pages, s.seeds = s.at[:0], s.refs[:0], s.pages[:0], s.seeds[:0]
}

func newWorker(r *run, most int) (*worker, error) {
	p, err := kvcache.NewPainter(r.cache, most)
	if err != nil {
		return nil, err
	}
	return &worker{run: r, painter: p, all: r.cache.All()}, nil
}

// add adds block i of the request to s.
func (w *worker) add(s *blockSet, req *Request, i int) {
	s.at = append(s.at, i)
	s.refs = append(s.refs, store.Ref{Key: w.keys[i], Page: w.pages[i]})
	s.pages = append(s.pages, w.pages[i])
	s.seeds = append(s.seeds, kvcache.ContentSeed(req.HashIDs[i]))
}

// replayAll replays requests until there are no more or one fails. A failure of a single block is
// counted, but does not fail the request.
func (w *worker) replayAll(ctx context.Context) error {
	for {
		var req *queuedRequest
		select {
		case next, ok := <-w.run.requests:
			if !ok {
				return nil
			}
			req = next
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if w.run.cfg.Speed > 0 {
			w.run.tally.latency(w.run.tally.lag, w.run.pace.delay(req))
		}
		w.keys = req.keys
		if err := w.request(ctx, &req.Request); err != nil {
			return fmt.Errorf("replay line %d: %w", req.Line, err)
		}
		w.run.finished(w.step)
		w.run.freeRequests <- req
	}
}

// request replays one request: it takes pages, leases the prefix, computes, loads and dumps. Loaded
// blocks are verified while the others are dumped.
func (w *worker) request(ctx context.Context, req *Request) (err error) {
	n := len(req.HashIDs)
	w.run.tally.see(req.HashIDs)
	w.step = Step{Accesses: int64(n)}
	if n == 0 {
		return nil
	}
	if err := w.take(ctx, n); err != nil {
		return err
	}
	// Pages must not return to the free list before the last access to them.
	quiesced := true
	defer func() {
		if !quiesced {
			w.run.cache.Abandon(n)
		} else if !w.painter.Dead() {
			w.run.cache.Give(w.pages)
		}
	}()
	w.load.reset()
	w.compute.reset()
	hits, ended, err := w.loadPrefix(ctx, req)
	if quiesced = ended; err != nil {
		return err
	}
	for i := hits; i < n; i++ {
		w.add(&w.compute, req, i)
	}
	unloaded := len(w.compute.at) - (n - hits)
	if unloaded > 0 {
		// computing needs the painter, so the comparison must be complete
		if err := w.judge(ctx, req); err != nil {
			return err
		}
	}
	if len(w.compute.at) > 0 {
		quiesced, err = w.dump(ctx, req, unloaded)
	}
	return errors.Join(err, w.judge(ctx, req))
}

// take takes n free pages from the cache.
func (w *worker) take(ctx context.Context, n int) (err error) {
	ctx, cancel := context.WithTimeout(ctx, w.run.cfg.Timeout)
	defer cancel()
	w.pages, err = w.run.cache.Take(ctx, w.pages[:0], n)
	return err
}

// paint fills the request's pages: the first hits pages with poison, the others with their
// contents. Layerwise replays poison all pages and compute each layer just before its dump. A load
// that is missing or that writes to a wrong page then results in wrong bytes.
func (w *worker) paint(ctx context.Context, req *Request, hits int) error {
	ctx, cancel := context.WithTimeout(ctx, w.run.cfg.Timeout)
	defer cancel()
	w.seeds = w.seeds[:0]
	for i := range w.pages {
		seed := kvcache.ContentSeed(req.HashIDs[i])
		if i < hits || w.run.cfg.Layerwise {
			seed = kvcache.PoisonSeed(w.run.poisoned.Add(1))
		}
		w.seeds = append(w.seeds, seed)
	}
	if err := w.painter.Fill(ctx, w.all, w.pages, w.seeds); err != nil {
		return fmt.Errorf("poison or compute %d pages: %w", len(w.pages), err)
	}
	return nil
}

// loadPrefix leases the request's longest prefix, computes the other blocks, loads the prefix and
// starts to compare it. judge completes the comparison. It returns the number of leased blocks.
// Blocks that failed to load are added to w.compute. ended reports whether no transfer is in
// progress.
func (w *worker) loadPrefix(ctx context.Context, req *Request) (hits int, ended bool, err error) {
	looking, done := context.WithTimeout(ctx, w.run.cfg.Timeout)
	defer done()
	lease, err := w.run.cfg.Store.LeasePrefix(looking, w.keys, w.run.cfg.Timeout)
	if err != nil {
		return 0, true, fmt.Errorf("lease prefix: %w", err)
	}
	defer lease.Release()
	hits = lease.Len()
	if err := w.paint(ctx, req, hits); err != nil || hits == 0 {
		return 0, true, err
	}
	wait, cancel := context.WithTimeout(ctx, w.run.cfg.Timeout)
	defer cancel()
	w.tiers = w.tiers[:0]
	for i := range hits {
		w.tiers = append(w.tiers, lease.Tier(i))
		w.add(&w.load, req, i)
	}
	w.mismatched = slices.Grow(w.mismatched[:0], hits)[:hits]
	clear(w.mismatched)
	start := time.Now()
	task, err := w.run.cfg.Store.Load(wait, lease, w.run.cache.Pages(), w.load.refs, store.LoadOptions{Layerwise: w.run.cfg.Layerwise})
	if err != nil {
		return 0, true, fmt.Errorf("load %d blocks: %w", hits, err)
	}
	if w.run.cfg.Layerwise {
		err = w.checkLayers(wait, task)
	}
	if !waitEnded(wait, task, w.run.cfg.Timeout) {
		return 0, false, fmt.Errorf("load %d blocks: the transfer did not end: %w", hits, context.Cause(wait))
	}
	if err = errors.Join(err, wait.Err()); err != nil {
		return 0, true, fmt.Errorf("load %d blocks: %w", hits, err)
	}
	w.run.tally.latency(w.run.tally.load, time.Since(start))
	w.errs = task.Errs()
	for i, err := range w.errs {
		if err != nil {
			w.add(&w.compute, req, i)
			w.run.tally.failLoad(fmt.Errorf("line %d: hash id %d: %w", req.Line, req.HashIDs[i], err))
		}
	}
	if !w.run.cfg.Layerwise {
		if err := w.painter.Compare(wait, w.all, w.load.pages, w.load.seeds); err != nil {
			return 0, true, fmt.Errorf("verify %d blocks: %w", hits, err)
		}
	}
	w.unjudged = true
	return hits, true, nil
}

// checkLayers compares each layer as soon as it is loaded. Blocks that fail to load are also
// compared, but judge ignores their results.
func (w *worker) checkLayers(ctx context.Context, task *store.LoadTask) error {
	for layer := range w.run.cfg.Geometry.Layers {
		if err := task.WaitShard(ctx, layer); err != nil && ctx.Err() != nil {
			return err
		}
		if err := w.painter.Check(ctx, w.run.cache.Shard(layer), w.load.pages, w.load.seeds, w.mismatched); err != nil {
			return fmt.Errorf("verify layer %d: %w", layer, err)
		}
	}
	return nil
}

// judge counts the loaded blocks and reports the ones with wrong bytes. Further calls for the same
// load do nothing.
func (w *worker) judge(ctx context.Context, req *Request) error {
	if !w.unjudged {
		return nil
	}
	w.unjudged = false
	ctx, cancel := context.WithTimeout(ctx, w.run.cfg.Timeout)
	defer cancel()
	if !w.run.cfg.Layerwise {
		if err := w.painter.Compared(ctx, w.mismatched); err != nil {
			return fmt.Errorf("verify %d blocks: %w", len(w.mismatched), err)
		}
	}
	var good int64
	for i, err := range w.errs {
		if err != nil {
			continue
		}
		good++
		if w.mismatched[i] > 0 {
			if err := w.mismatch(ctx, req, i); err != nil {
				return err
			}
		}
	}
	w.step.Hits, w.step.VerifiedBytes = good, good*w.run.cache.BlockBytes()
	w.run.tally.update(func(r *Report) {
		r.PrefixHits += w.step.Hits
		r.BytesVerified += w.step.VerifiedBytes
		for i, err := range w.errs {
			if err == nil {
				r.HitsByTier[w.tiers[i]]++
			}
		}
	})
	return nil
}

// mismatch reports block i of the request, whose page has wrong bytes.
func (w *worker) mismatch(ctx context.Context, req *Request, i int) error {
	plane, off, err := w.painter.Locate(ctx, w.pages[i], kvcache.ContentSeed(req.HashIDs[i]))
	if err != nil {
		return err
	}
	m := Mismatch{
		Line: req.Line, HashID: req.HashIDs[i], Key: w.keys[i].String(), Tier: w.tiers[i], Page: w.pages[i],
		Layer: plane / w.run.cache.PerShard(), Part: w.run.cache.Part(plane), Offset: off, WrongBytes: w.mismatched[i],
	}
	w.step.WrongBytes += m.WrongBytes
	w.run.tally.update(func(r *Report) {
		r.Mismatches++
		r.MismatchedBytes += m.WrongBytes
		if len(r.MismatchSamples) < mostSamples {
			r.MismatchSamples = append(r.MismatchSamples, m)
		}
	})
	return nil
}

// dump dumps the blocks of w.compute. First it computes the last unloaded of them, which failed to
// load. Layerwise replays compute every layer of all blocks here. It waits until the pages may be
// reused, and ended reports whether they may. Blocks that cannot be stored are counted, but do not
// fail the replay.
func (w *worker) dump(ctx context.Context, req *Request, unloaded int) (ended bool, err error) {
	wait, cancel := context.WithTimeout(ctx, w.run.cfg.Timeout)
	defer cancel()
	layerwise := w.run.cfg.Layerwise
	if !layerwise {
		if err := w.painter.Fill(wait, w.all, w.compute.pages[:unloaded], w.compute.seeds[:unloaded]); err != nil {
			return true, fmt.Errorf("compute %d blocks: %w", unloaded, err)
		}
	}
	start := time.Now()
	task, err := w.run.cfg.Store.Dump(wait, w.run.cache.Pages(), w.compute.refs, store.DumpOptions{Layerwise: layerwise})
	if err != nil {
		return true, fmt.Errorf("dump %d blocks: %w", len(w.compute.at), err)
	}
	if layerwise {
		err = w.computeLayers(wait, task)
	}
	if err != nil {
		task.Cancel()
	}
	if !w.sourceFree(wait, task) {
		return false, errors.Join(err, fmt.Errorf("dump %d blocks: the transfer did not end: %w", len(w.compute.at), context.Cause(wait)))
	}
	if err = errors.Join(err, wait.Err()); err != nil {
		return true, fmt.Errorf("dump %d blocks: %w", len(w.compute.at), err)
	}
	w.run.tally.latency(w.run.tally.dump, time.Since(start))
	// The next request must find these blocks. Otherwise the number of hits would depend on timing.
	if err := task.Published(wait); err != nil {
		return true, fmt.Errorf("publish %d blocks: %w", len(w.compute.at), err)
	}
	select {
	case w.run.pendingDumps <- pendingDump{task: task, line: req.Line, start: start}:
	case <-ctx.Done():
		return true, context.Cause(ctx)
	}
	return true, nil
}

// computeLayers computes one layer at a time and submits it to the dump before it computes the next
// one.
func (w *worker) computeLayers(ctx context.Context, task *store.DumpTask) error {
	for layer := range w.run.cfg.Geometry.Layers {
		if err := w.painter.Fill(ctx, w.run.cache.Shard(layer), w.compute.pages, w.compute.seeds); err != nil {
			return err
		}
		if err := task.SubmitShard(ctx, layer); err != nil {
			return err
		}
	}
	return nil
}

// sourceFree waits until the dump no longer reads pages and reports whether this is the case. If
// ctx ends first, it cancels the dump and waits at most Config.Timeout.
func (w *worker) sourceFree(ctx context.Context, task *store.DumpTask) bool {
	if task.SourceFree(ctx) == nil {
		return true
	}
	task.Cancel()
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), w.run.cfg.Timeout)
	defer cancel()
	return task.SourceFree(last) == nil
}

// waitEnded waits until the task has ended and reports whether it has. If ctx ends first, it
// cancels the task and waits at most grace.
func waitEnded(ctx context.Context, task *store.LoadTask, grace time.Duration) bool {
	_ = task.Wait(ctx) // the caller gets the errors of the blocks from the task
	if ctx.Err() == nil {
		return true
	}
	task.Cancel()
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
	defer cancel()
	_ = task.Wait(last)
	select {
	case <-task.Done():
		return true
	default:
		return false
	}
}
