package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/store/admission"
	"github.com/kvlane/kvlane/store/batch"
	"github.com/kvlane/kvlane/store/dump"
	"github.com/kvlane/kvlane/store/index"
	"github.com/kvlane/kvlane/store/load"
	"github.com/kvlane/kvlane/store/pages"
	"github.com/kvlane/kvlane/store/pipeline"
	"github.com/kvlane/kvlane/store/pool"
	"github.com/kvlane/kvlane/store/task"
	"github.com/kvlane/kvlane/stream"
	"github.com/kvlane/kvlane/stream/renew"
	"github.com/kvlane/kvlane/tier"
)

// Store copies blocks between GPU pages and a pipeline of tiers. All methods are safe for
// concurrent use.
type Store struct {
	cfg       Config
	pipeline  *pipeline.Pipeline
	sched     *task.Scheduler
	admission admission.Model
	refused   *tier.Recent[time.Time] // last times at which Worth refused blocks
	loader    *load.Loader
	dumper    *dump.Dumper
	loads     *renew.Stream
	dumps     *renew.Stream
	readers   *pool.Pool
	checks    *pool.Pool

	closeLock   chan struct{} // held by Close; a channel, so that a context can end the wait
	stopped     bool          // pools and streams are closed; guarded by closeLock
	reportedErr error         // errors of closed streams; guarded by closeLock
}

// Open returns a store over the tiers of c. It starts the goroutines of pools, but opens no stream.
// It returns ErrInvalid with every invalid field.
func Open(c Config) (*Store, error) {
	c.setDefaults()
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	m, err := pages.NewMap(c.Formats, c.Layers)
	if err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	// Leases may hold five eighths of the slots and waiting dumps a quarter. The rest is always
	// released without waiting for the host program: see the package comment.
	slots := slotCount(&c)
	leased, rest := max(1, slots/4), max(1, slots/8)
	c.Cache.LimitRetained(int(max(0, slots-leased-rest)))
	x, err := index.Open(index.Config{
		Tiers: append([]tier.Tier{c.Cache}, c.Next...), LeaseMax: c.LeaseMax, Clock: c.Clock, Fallback: c.Hooks.Fallback,
	})
	if err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	s := &Store{
		cfg: c,
		pipeline: pipeline.New(pipeline.Config{
			Map: m, Index: x, Cache: c.Cache, Lower: c.Next, Verify: c.Verify, Hooks: c.Hooks, Tracer: c.Tracer,
			Clock: c.Clock, WaitMax: c.WaitMax, LeaseMax: c.LeaseMax, Direct: c.Direct,
		}),
		sched:     task.NewScheduler(c.Tasks, c.Clock),
		readers:   pool.New(c.Readers),
		checks:    pool.New(c.Checkers),
		closeLock: make(chan struct{}, 1),
		refused:   tier.NewRecent[time.Time](refusedMost),
	}
	s.loads, s.dumps = s.newStream("load", c.OpenLoad), s.newStream("dump", c.OpenDump)
	loads := s.newEnv(mem.ToPages, s.loads)
	s.loader = load.New(load.Config{
		Pipeline: s.pipeline, Scheduler: s.sched, Env: loads, Readers: s.readers, Admission: &s.admission,
		BatchBytes: c.BatchBytes, PartBytes: c.PartBytes, RowBytes: c.RowBytes,
	})
	s.dumper = dump.New(dump.Config{
		Pipeline: s.pipeline, Scheduler: s.sched, Env: s.newEnv(mem.ToSlots, s.dumps), Loads: loads, Writers: c.Writers,
		WaitingSlots: leased, BatchBytes: c.BatchBytes, PartBytes: load.WholeParts * c.PartBytes,
	})
	return s, nil
}

// newStream returns the stream of one direction.
func (s *Store) newStream(direction string, open func() (stream.Stream, error)) *renew.Stream {
	return renew.New(renew.Options{
		Name: direction, Open: open, Clock: s.cfg.Clock,
		Retried:  func() { s.pipeline.Count.Retries.Add(1) },
		Reopened: func(cause error) { s.pipeline.CountReopened(direction, cause) },
	})
}

// newEnv returns the environment of all batches of one direction.
func (s *Store) newEnv(dir mem.Direction, st *renew.Stream) *batch.Env {
	return &batch.Env{
		Map: s.pipeline.Map, Slots: s.cfg.Cache.Slots(), Dir: dir, Stream: st, Clock: s.cfg.Clock, Checks: s.checks, Checkers: s.cfg.Checkers,
	}
}

// Lookup returns the tier of each key's block: see index.Index.Lookup.
func (s *Store) Lookup(ctx context.Context, keys []block.Key) (_ []Hit, err error) {
	defer s.pipeline.ObserveSince(&s.pipeline.Count.LookupTimes, s.cfg.Clock.Now())
	ctx, end := s.pipeline.StartSpan(ctx, pipeline.Span{Operation: "lookup", Blocks: len(keys)})
	defer func() { end(err) }()
	return s.pipeline.Index.Lookup(ctx, keys)
}

// SetAnchors records the anchors of blocks: see index.Index.SetAnchors.
func (s *Store) SetAnchors(keys, anchors []block.Key) error {
	return s.pipeline.Index.SetAnchors(keys, anchors)
}

// LeasePrefix pins the longest prefix of keys whose blocks are all Ready: see
// index.Index.LeasePrefix.
func (s *Store) LeasePrefix(ctx context.Context, keys []block.Key, ttl time.Duration) (_ *Lease, err error) {
	defer s.pipeline.ObserveSince(&s.pipeline.Count.LeaseTimes, s.cfg.Clock.Now())
	ctx, end := s.pipeline.StartSpan(ctx, pipeline.Span{Operation: "lease", Blocks: len(keys)})
	defer func() { end(err) }()
	return s.pipeline.Index.LeasePrefix(ctx, keys, ttl)
}

// Drop removes blocks from the cache, but not from the tiers below. It does not wait, and ignores
// missing blocks. stay is the number of blocks that stay because they are in use; the cache evicts
// them later.
func (s *Store) Drop(ctx context.Context, keys []block.Key) (stay int, err error) {
	if err := block.CheckKeys(keys); err != nil {
		return 0, fmt.Errorf("drop %d blocks: %w", len(keys), err)
	}
	for i := range keys {
		switch err := s.cfg.Cache.Delete(ctx, keys[i]); {
		case err == nil || pipeline.IsNotFound(err):
		case pipeline.IsBusy(err):
			stay++
		default:
			return stay, fmt.Errorf("drop %d blocks: %w", len(keys), err)
		}
	}
	return stay, nil
}

// OpenStreams opens the streams of loads and dumps. Without it they are opened on first use.
func (s *Store) OpenStreams(ctx context.Context) error {
	return errors.Join(s.loads.Open(ctx), s.dumps.Open(ctx))
}

// Load copies each ref's block to its page, from the first tier that has it, and verifies it under
// the store's policy; under VerifyDevice by the bytes that were written to the page. A copy that
// fails its check is repeated, up to three copies.
//
// A lease, if not nil, must belong to this store, pin the blocks of all refs, in any order
// (ErrInvalid), and be open (ErrExpired). Its pins last until the load has ended. Load waits until
// it may start under Config.Tasks, or until ctx ends. Later the end of ctx has no effect. pages
// must not change until Done.
//
// Blocks fail individually, each with a *BlockError: ErrNotFound (the block is in no tier),
// ErrCorrupt (its bytes failed their check in every tier that had it, which dropped it, or on the
// page), ErrBusy (no slot became free in time), ErrExpired (all blocks: streams stopped waiting for
// the load, see Progress), ErrCanceled, or the cause.
func (s *Store) Load(ctx context.Context, lease *Lease, pages *Pages, refs []Ref, o LoadOptions) (*LoadTask, error) {
	return s.loader.Load(ctx, lease, pages, refs, o)
}

// Dump stores each ref's block from its page. The refs are in the order of a prompt, and those of
// several page groups in the order of their tokens. The last block is evicted first. Blocks that
// every durable tier is known to have are skipped. If another task is filling a block, the dump
// waits for it, and copies the block if that task fails. Dump waits until it may start under
// Config.Tasks, or until ctx ends. Later the end of ctx has no effect. pages must not change until
// SourceFree.
//
// A block is published in the cache, so that lookups find it, once all its shards are copied and
// sealed. It is pinned until it was written to the tiers below. A tier that is full or fails is
// left out for that block (DumpTask.LeftOut). The block fails if no tier stores it. A dump may be
// larger than the cache: blocks receive slots as others become durable.
//
// Blocks fail individually, each with a *BlockError: ErrBusy (no slot became free in time),
// ErrCanceled, ErrNoSpace, or the cause. If there is no cache and all tiers are read-only, Dump
// returns ErrReadOnly.
func (s *Store) Dump(ctx context.Context, pages *Pages, refs []Ref, o DumpOptions) (*DumpTask, error) {
	return s.dumper.Dump(ctx, pages, refs, o)
}

// Close refuses new work and releases all leases. It cancels loads, prefetches and layerwise dumps
// that wait for a shard or its dependencies. It finishes other dumps with their writes, including
// those whose DumpOptions.After resolves within Config.LeaseMax. Then it stops all goroutines and
// closes the streams.
//
// If ctx ends first, dumps and writes are canceled too, and Close returns ErrCanceled with the
// cause of ctx. Close may then be called again, to wait for hardware and tiers, and also after a
// stream did not close. After Close has returned nil, the tiers may be closed. An error of a stream
// that is closed nevertheless is returned once.
func (s *Store) Close(ctx context.Context) error {
	ended := s.sched.Close()
	s.pipeline.Index.Close()
	cancelDumps := func() error {
		s.sched.CancelDumps(fmt.Errorf("store closed before the dump ended: %w", errdefs.ErrCanceled))
		return closeError(ctx)
	}
	select {
	case s.closeLock <- struct{}{}:
		defer func() { <-s.closeLock }()
	case <-ctx.Done():
		return cancelDumps()
	}
	if s.stopped {
		return nil
	}
	select {
	case <-ended:
	case <-ctx.Done():
		return cancelDumps()
	}
	s.readers.Close()
	s.dumper.Close()
	s.checks.Close()
	s.sched.StopRunners()
	reportedLoads, errLoads := s.loads.Close(ctx)
	reportedDumps, errDumps := s.dumps.Close(ctx)
	s.reportedErr = errors.Join(s.reportedErr, reportedLoads, reportedDumps)
	// After an error a stream is still open, and may access the slots.
	if err := errors.Join(errLoads, errDumps); err != nil {
		if ctx.Err() != nil {
			return errors.Join(closeError(ctx), err)
		}
		return fmt.Errorf("close store: %w", err)
	}
	s.sched.CancelDumps(errdefs.ErrClosed)
	s.stopped = true
	if s.reportedErr != nil {
		return fmt.Errorf("close store: %w", s.reportedErr)
	}
	return nil
}

func closeError(ctx context.Context) error {
	return fmt.Errorf("close store: %w: %w", errdefs.ErrCanceled, context.Cause(ctx))
}
