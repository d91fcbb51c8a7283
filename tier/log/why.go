package log

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/dirfs"
	"github.com/kvlane/kvlane/tier"
	"github.com/kvlane/kvlane/tier/internal/blockdir"
	"github.com/kvlane/kvlane/tier/internal/usage"
)

// Explain implements tier.Explainer. A block is Ready if the index has it. Its time is the last
// write to its segment, and the last use is unknown.
func (t *Tier) Explain(ctx context.Context, keys []block.Key, out []tier.Explanation) error {
	if len(keys) != len(out) {
		return fmt.Errorf("explain %d blocks with space for %d: %w", len(keys), len(out), errdefs.ErrInvalid)
	}
	if err := t.beginOp(ctx); err != nil {
		return err
	}
	defer t.ops.EndOp()
	if _, err := t.explain(keys, out); err != nil {
		return t.fail(fmt.Errorf("explain blocks of directory %s: %w", filepath.Clean(t.cfg.Dir), err))
	}
	return nil
}

func (t *Tier) explain(keys []block.Key, out []tier.Explanation) (blockdir.RemovalLog, error) {
	t.removals.Flush()
	at := make([]int, len(keys))
	for i, key := range keys {
		at[i], out[i] = i, tier.Explanation{Place: filepath.Clean(t.cfg.Dir)}
		_, op := t.locks.State(key)
		e, ok := t.table.get(key)
		switch {
		case ok:
			out[i].State = tier.Ready
			t.explainSegment(e.segment, &out[i])
		case op == usage.Writing:
			out[i].State = tier.Filling
		}
	}
	return blockdir.ExplainRemovals(t.dir, keys, at, out)
}

// explainSegment sets Stored and Reason of a block in a segment.
func (t *Tier) explainSegment(number uint32, e *tier.Explanation) {
	g := t.segments.acquire(number)
	if g == nil {
		return // the block was moved in the meantime
	}
	info, err := g.file.Stat()
	if err = errors.Join(err, g.release()); err == nil {
		e.Stored, e.Reason = info.Modified, "in segment "+segmentName(number)
	}
}

// Why explains the blocks of a directory with the keys that keysOf returns for its marker. It
// changes nothing, and a process may use the directory during the call. It returns ErrNotFound if
// this is not a directory of blocks, and ErrCorrupt or ErrMismatch if the marker cannot be read.
func Why(ctx context.Context, dir string, keysOf func(m *blockdir.Marker) ([]block.Key, error)) (blockdir.Answers, error) {
	return why(ctx, dirfs.OS(), dir, keysOf)
}

func why(ctx context.Context, fsys dirfs.FS, path string, keysOf func(m *blockdir.Marker) ([]block.Key, error)) (a blockdir.Answers, err error) {
	d, err := openExisting(ctx, fsys, path)
	if err != nil {
		return a, fmt.Errorf("explain blocks of %w", err)
	}
	defer func() { err = errors.Join(err, d.closeExisting()) }()
	a.Marker = d.marker
	if a.Keys, err = keysOf(&a.Marker); err != nil {
		return a, err
	}
	a.Blocks = make([]tier.Explanation, len(a.Keys))
	l, err := d.explain(a.Keys, a.Blocks)
	if err != nil {
		return a, fmt.Errorf("explain blocks of directory %s: %w", d.cfg.Dir, err)
	}
	a.Records, a.Damaged = l.Records, l.Damaged
	return a, nil
}
