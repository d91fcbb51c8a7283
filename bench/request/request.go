package request

import (
	"context"
	"fmt"
	"time"

	"github.com/kvlane/kvlane"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
)

// patience is the timeout of a request. Waiting for failed requests takes at most twice as long.
const patience = time.Minute

// lane makes one request at a time, always with the same pages. Its times are relative to the
// argument begin.
type lane struct {
	rig  *rig
	work Work       // Load or Dump
	raw  *mem.Batch // batch of a stream to submit instead of a request to the store, or nil
	// With Raw, parts are the file ranges to read instead of a request, found on first use, and
	// openFlags are the flags to open these files.
	parts     []filePart
	openFlags int
	layers    bool
	by        By
	tier      string // tier in which a load must find its blocks; empty: any tier
	refs      []kvlane.Ref
	keys      []kvlane.Key

	leased  time.Duration   // load: time until LeasePrefix returned
	begun   time.Duration   // load: time until Load returned
	free    time.Duration   // load: time until verified in pages; dump: until source pages are free
	durable time.Duration   // dump: time until blocks are durable
	arrived []time.Duration // layerwise load: time until each layer is loaded
}

// run makes one request.
func (l *lane) run(ctx context.Context, begin time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	switch {
	case l.raw != nil:
		return l.copy(ctx, begin)
	case l.by == Raw:
		return l.readFiles(begin)
	case l.work == Load:
		return l.load(ctx, begin)
	}
	return l.dump(ctx, begin)
}

func (l *lane) copy(ctx context.Context, begin time.Time) error {
	t, err := l.rig.raw.Submit(ctx, l.raw)
	if err != nil {
		return fmt.Errorf("submit to a bare stream: %w", err)
	}
	if err := t.Wait(ctx); err != nil {
		return fmt.Errorf("copy by a bare stream: %w", err)
	}
	l.free = time.Since(begin)
	return nil
}

func (l *lane) load(ctx context.Context, begin time.Time) error {
	e := l.rig.engine
	lease, err := e.LeasePrefix(ctx, l.keys, patience)
	if err != nil {
		return err
	}
	defer lease.Release()
	l.leased = time.Since(begin)
	if lease.Len() < len(l.keys) {
		return fmt.Errorf("lease %d blocks: block %d is not there, or leases hold too much of the cache: %w", len(l.keys), lease.Len(), errdefs.ErrNotFound)
	}
	task, err := e.Load(ctx, lease, l.rig.pages, l.refs, kvlane.LoadOptions{Layerwise: l.layers, Promotion: l.by.promotion()})
	if err != nil {
		return err
	}
	l.begun = time.Since(begin)
	for k := range l.arrived {
		if err != nil {
			break
		}
		err = task.WaitShard(ctx, k)
		l.arrived[k] = time.Since(begin)
	}
	if err == nil {
		err = task.Wait(ctx)
	}
	l.free = time.Since(begin)
	if err != nil {
		task.Cancel() // close of the rig waits for the task
		return err
	}
	if found := lease.Tier(len(l.keys) - 1); l.tier != "" && found != l.tier {
		return fmt.Errorf("blocks were found in the %s tier and not in the %s: %w", found, l.tier, errdefs.ErrMismatch)
	}
	return nil
}

func (l *lane) dump(ctx context.Context, begin time.Time) error {
	task, err := l.rig.engine.Dump(ctx, l.rig.pages, l.refs, kvlane.DumpOptions{Layerwise: l.layers})
	if err != nil {
		return err
	}
	for k := 0; l.layers && k < l.rig.geometry.Shards() && err == nil; k++ {
		err = task.SubmitShard(ctx, k)
	}
	if err == nil {
		err = task.SourceFree(ctx)
	}
	l.free = time.Since(begin)
	if err == nil {
		err = task.Durable(ctx)
	}
	l.durable = time.Since(begin)
	if err != nil {
		task.Cancel()
		return err
	}
	if n := task.Skipped(); n > 0 {
		return fmt.Errorf("%d blocks of a dump were there before: %w", n, errdefs.ErrExists)
	}
	return nil
}
