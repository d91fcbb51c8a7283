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

// worker replays one request at a time. What it works with is kept from request to request.
type worker struct {
	run     *run
	painter *kvcache.Painter
	all     kvcache.Span

	keys  []block.Key
	pages []uint32
	seeds []uint64
	wrong []int64
	tiers []string // where each leased block lay
	errs  []error  // of each of them that was loaded, or nil
	// unjudged: they are being compared.
	unjudged bool
	step     Step // what this request amounted to
	// The blocks of the request that are loaded, and those that are computed and dumped.
	load, compute work
}

// work is a subset of a request's blocks.
type work struct {
	at    []int // positions in the request
	refs  []store.Ref
	pages []uint32
	seeds []uint64
}

func (s *work) reset() {
	s.at, s.refs, s.pages, s.seeds = s.at[:0], s.refs[:0], s.pages[:0], s.seeds[:0]
}

func newWorker(r *run, most int) (*worker, error) {
	p, err := kvcache.NewPainter(r.cache, most)
	if err != nil {
		return nil, err
	}
	return &worker{run: r, painter: p, all: r.cache.All()}, nil
}

// add puts block i of the request into s.
func (w *worker) add(s *work, req *Request, i int) {
	s.at = append(s.at, i)
	s.refs = append(s.refs, store.Ref{Key: w.keys[i], Page: w.pages[i]})
	s.pages = append(s.pages, w.pages[i])
	s.seeds = append(s.seeds, kvcache.ContentSeed(req.HashIDs[i]))
}

// work replays requests until there are no more, or until one fails in a way that makes going on pointless.
func (w *worker) work(ctx context.Context) error {
	for {
		var req *turn
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
			w.run.tally.latency(w.run.tally.lag, w.run.pace.late(req))
		}
		w.keys = req.keys
		if err := w.request(ctx, &req.Request); err != nil {
			return fmt.Errorf("replay line %d: %w", req.Line, err)
		}
		w.run.finished(w.step)
		w.run.spare <- req
	}
}

// request replays one request: pages, prefix, compute, load, dump. What was loaded is verified while the rest is dumped.
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
	// Pages go back only when nothing can touch them any more.
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
	hits, quiet, err := w.loadPrefix(ctx, req)
	if quiesced = quiet; err != nil {
		return err
	}
	for i := hits; i < n; i++ {
		w.add(&w.compute, req, i)
	}
	unloaded := len(w.compute.at) - (n - hits)
	if unloaded > 0 {
		if err := w.judge(ctx, req); err != nil { // who computes them needs the painter
			return err
		}
	}
	if len(w.compute.at) > 0 {
		quiesced, err = w.dump(ctx, req, unloaded)
	}
	return errors.Join(err, w.judge(ctx, req))
}

// take takes n pages.
func (w *worker) take(ctx context.Context, n int) (err error) {
	ctx, cancel := context.WithTimeout(ctx, w.run.cfg.Timeout)
	defer cancel()
	w.pages, err = w.run.cache.Take(ctx, w.pages[:0], n)
	return err
}

// paint computes the blocks of the request behind its first hits, and poisons the pages of those: what is not loaded then shows as
// wrong bytes, and so does what is loaded to a page of another. Layers are computed when they are dumped.
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

// loadPrefix leases the request's longest prefix, loads it into the pages and has it compared, for judge, and computes the rest. It returns
// how many blocks were found; those of them that could not be loaded are in w.compute. quiet says that no transfer is left.
func (w *worker) loadPrefix(ctx context.Context, req *Request) (hits int, quiet bool, err error) {
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
	w.wrong = slices.Grow(w.wrong[:0], hits)[:hits]
	clear(w.wrong)
	start := time.Now()
	task, err := w.run.cfg.Store.Load(wait, lease, w.run.cache.Pages(), w.load.refs, store.LoadOptions{Layerwise: w.run.cfg.Layerwise})
	if err != nil {
		return 0, true, fmt.Errorf("load %d blocks: %w", hits, err)
	}
	if w.run.cfg.Layerwise {
		err = w.checkLayers(wait, task)
	}
	if !settle(wait, task, w.run.cfg.Timeout) {
		return 0, false, fmt.Errorf("load %d blocks: the transfer did not come to rest: %w", hits, context.Cause(wait))
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

// checkLayers compares each layer as it arrives, when an engine would use it. Blocks that fail to load are compared
// too, to no effect: judge does not look at their counts.
func (w *worker) checkLayers(ctx context.Context, task *store.LoadTask) error {
	for layer := range w.run.cfg.Geometry.Layers {
		if err := task.WaitShard(ctx, layer); err != nil && ctx.Err() != nil {
			return err
		}
		if err := w.painter.Check(ctx, w.run.cache.Shard(layer), w.load.pages, w.load.seeds, w.wrong); err != nil {
			return fmt.Errorf("verify layer %d: %w", layer, err)
		}
	}
	return nil
}

// judge counts the blocks that were loaded and reports those that hold wrong bytes, unless that has been done.
func (w *worker) judge(ctx context.Context, req *Request) error {
	if !w.unjudged {
		return nil
	}
	w.unjudged = false
	ctx, cancel := context.WithTimeout(ctx, w.run.cfg.Timeout)
	defer cancel()
	if !w.run.cfg.Layerwise {
		if err := w.painter.Compared(ctx, w.wrong); err != nil {
			return fmt.Errorf("verify %d blocks: %w", len(w.wrong), err)
		}
	}
	var good int64
	for i, err := range w.errs {
		if err != nil {
			continue
		}
		good++
		if w.wrong[i] > 0 {
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

// mismatch reports block i of the request, whose page holds wrong bytes.
func (w *worker) mismatch(ctx context.Context, req *Request, i int) error {
	plane, off, err := w.painter.Locate(ctx, w.pages[i], kvcache.ContentSeed(req.HashIDs[i]))
	if err != nil {
		return err
	}
	m := Mismatch{
		Line: req.Line, HashID: req.HashIDs[i], Key: w.keys[i].String(), Tier: w.tiers[i], Page: w.pages[i],
		Layer: plane / w.run.cache.PerShard(), Part: w.run.cache.Part(plane), Offset: off, WrongBytes: w.wrong[i],
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

// dump dumps the blocks of w.compute, of which it first computes those that could not be loaded, or all layer by layer. It returns once
// the pages may be reused; quiet says whether that is so. Blocks that cannot be stored are counted, and do not end the replay.
func (w *worker) dump(ctx context.Context, req *Request, unloaded int) (quiet bool, err error) {
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
		return false, errors.Join(err, fmt.Errorf("dump %d blocks: the transfer did not come to rest: %w", len(w.compute.at), context.Cause(wait)))
	}
	if err = errors.Join(err, wait.Err()); err != nil {
		return true, fmt.Errorf("dump %d blocks: %w", len(w.compute.at), err)
	}
	w.run.tally.latency(w.run.tally.dump, time.Since(start))
	// The next request must find these blocks, or the number of hits would depend on who is faster.
	if err := task.Published(wait); err != nil {
		return true, fmt.Errorf("publish %d blocks: %w", len(w.compute.at), err)
	}
	select {
	case w.run.behind <- pendingDump{task: task, line: req.Line, start: start}:
	case <-ctx.Done():
		return true, context.Cause(ctx)
	}
	return true, nil
}

// computeLayers fills one layer after the other and hands each to the dump while the next is filled.
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

// sourceFree waits until the dump reads no page any more. When ctx ends it cancels the dump and gives it grace.
func (w *worker) sourceFree(ctx context.Context, task *store.DumpTask) bool {
	if task.SourceFree(ctx) == nil {
		return true
	}
	task.Cancel()
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), w.run.cfg.Timeout)
	defer cancel()
	return task.SourceFree(last) == nil
}

// settle waits until the task has come to rest. When ctx ends it cancels the task and gives it grace more.
func settle(ctx context.Context, task *store.LoadTask, grace time.Duration) bool {
	_ = task.Wait(ctx) // its blocks' errors are looked at one by one
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
