// Package load copies blocks from the tiers to pages and verifies them. A Loader starts tasks. Each
// task opens the slots of cached blocks, reads other blocks from the tiers below, copies slots to
// pages by batches, and verifies the copies.
package load

import (
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/kvlane/kvlane/store/index"
	"github.com/kvlane/kvlane/store/pages"
	"github.com/kvlane/kvlane/store/pipeline"
	"github.com/kvlane/kvlane/store/task"
)

// New returns a Loader.
func New(c Config) *Loader {
	m := c.Env.Map
	first := m.LayerBytes(0)
	return &Loader{
		Config:      c,
		batchBlocks: int(min(max(1, c.BatchBytes/m.Formats.MaxImageBytes()), math.MaxInt32)),
		pieceBlocks: int(max(1, HeadParts*c.PartBytes/first)),
	}
}

// Load copies each ref's block to its page and verifies it: see store.Store.Load.
func (l *Loader) Load(ctx context.Context, lease *index.Lease, pg *pages.Pages, refs []pages.Ref, o Options) (*Task, error) {
	fail := func(err error) (*Task, error) { return nil, fmt.Errorf("load %d blocks: %w", len(refs), err) }
	p := l.Pipeline
	if err := pg.Validate(p.Map); err != nil {
		return fail(err)
	}
	if err := l.Scheduler.Begin(ctx, task.Load); err != nil {
		return fail(err)
	}
	sc := l.takeScratch(len(refs))
	err := sc.Set(p.Map, pg, refs, true)
	if err == nil && lease != nil {
		err = lease.Begin(p.Index, sc.Keys)
	}
	if err != nil {
		l.putScratch(sc)
		l.Scheduler.End(task.Load)
		return fail(err)
	}
	t := &Task{
		base: task.New(p, l.Scheduler, task.Load, len(refs)), l: l, p: p, lease: lease, layerwise: o.Layerwise,
		sc: sc, startedAt: p.Clock.Now(),
	}
	t.groups = t.groupsArray[:0]
	sc.buffers.SetPages(pg)
	t.copySums = p.Verify != pipeline.VerifyFill && sc.buffers.CanSum()
	verifiedByCopy := t.copySums && p.Verify == pipeline.VerifyDevice
	direct := p.Direct != nil && o.Promotion != PromoteAll
	t.unverified, t.direct, t.promotion = verifiedByCopy && p.Unverified, verifiedByCopy && direct, o.Promotion
	if t.unverified || t.direct {
		sc.reserveUnverified(p.Map.Formats.MaxShards(), t.direct)
	}
	if direct && !t.direct {
		t.noteNotDirect(pipeline.ErrNoLeaves)
	}
	if t.layerwise {
		t.countLayers()
	}
	if task.Pending(o.After) {
		t.after = slices.Clone(o.After)
	}
	if lease == nil && len(p.Lower) > 0 {
		p.Index.Use(o.Before, sc.Keys)
	}
	p.Count.Loads.Add(1)
	t.progress.begin(o.Progress, t.base, p)
	l.Scheduler.Start((*runner)(t))
	return t, nil
}
