package log

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/dirfs"
	"github.com/kvlane/kvlane/tier/internal/blockdir"
)

// Pin pins blocks: see tier.Pinner. Emptying a segment moves its pinned blocks.
func (t *Tier) Pin(ctx context.Context, keys []block.Key) error {
	return t.pin(ctx, keys, t.cfg.MaxBytes)
}

func (t *Tier) pin(ctx context.Context, keys []block.Key, boundBytes int64) error {
	if t.cfg.ReadOnly {
		return fmt.Errorf("pin blocks: %w", errReadOnly)
	}
	if err := t.beginOp(ctx); err != nil {
		return err
	}
	defer t.ops.EndOp()
	n, err := t.Retain(ctx, keys)
	defer func() { t.Release(keys[:n]) }()
	if err == nil && n < len(keys) {
		err = fmt.Errorf("block %s is not in the log: %w", keys[n], errdefs.ErrNotFound)
	}
	if err == nil {
		err = t.syncBlocks(ctx, keys)
	}
	if err == nil {
		limit := blockdir.PinLimit{Formats: t.formats, Bound: boundBytes, Has: t.has}
		err = t.updatePins(func(set blockdir.PinSet) error { return limit.Add(set, keys) })
	}
	if err != nil {
		return fmt.Errorf("pin blocks: %w", blockdir.WriteError(err))
	}
	return nil
}

func (t *Tier) has(key block.Key) (bool, error) {
	_, ok := t.table.get(key)
	return ok, nil
}

// syncBlocks makes blocks durable under every policy. The caller has retained them.
func (t *Tier) syncBlocks(ctx context.Context, keys []block.Key) error {
	in := make(map[uint32]bool)
	for _, key := range keys {
		if e, ok := t.table.get(key); ok {
			in[e.segment] = true
		}
	}
	return t.syncSegments(ctx, func(g *segment) bool { return in[g.number] })
}

// Unpin removes the pins of blocks: see tier.Pinner.
func (t *Tier) Unpin(ctx context.Context, keys []block.Key) error {
	if t.cfg.ReadOnly {
		return fmt.Errorf("unpin blocks: %w", errReadOnly)
	}
	if err := t.beginOp(ctx); err != nil {
		return err
	}
	defer t.ops.EndOp()
	if err := t.updatePins(func(set blockdir.PinSet) error { return removePins(set, keys) }); err != nil {
		return fmt.Errorf("unpin blocks: %w", blockdir.WriteError(err))
	}
	return nil
}

func removePins(set blockdir.PinSet, keys []block.Key) error {
	for _, key := range keys {
		delete(set, key)
	}
	return nil
}

// updatePins changes the pins durably.
func (t *Tier) updatePins(change func(set blockdir.PinSet) error) error {
	unpinned, err := t.pins.Update(t.dir, change)
	if unpinned {
		t.space.notifyReleased()
	}
	return err
}

// dropPin removes the pin of a damaged block. If that fails, opening the log removes the pin.
func (t *Tier) dropPin(key block.Key) {
	if t.pins.Has(key) && t.updatePins(func(set blockdir.PinSet) error { return removePins(set, []block.Key{key}) }) != nil {
		t.count.errors.Add(1)
	}
}

// openPins reads the pins, and removes those of blocks that are not in the log. It keeps them if
// some segments could not be read.
func (t *Tier) openPins() error {
	_, err := t.pins.Refresh(t.dir)
	damaged := errors.Is(err, errdefs.ErrCorrupt)
	if damaged {
		t.notes = append(t.notes, fmt.Sprintf("log tier: %s: %v; pin the blocks again", filepath.Clean(t.cfg.Dir), err))
		t.damage = append(t.damage, finding{blockdir.PinsName, blockdir.Damaged, err.Error()})
		t.count.errors.Add(1)
	} else if err != nil {
		return err
	}
	if t.cfg.ReadOnly || t.pins.Total(t.formats).Blocks == 0 && !damaged || len(t.unreadFiles) > 0 {
		return nil
	}
	return t.updatePins(func(set blockdir.PinSet) error {
		for key := range set {
			if _, ok := t.table.get(key); !ok {
				delete(set, key)
			}
		}
		return nil
	})
}

// Pinned is the result of Pin and Unpin.
type Pinned = blockdir.Pinned

// Pin pins the selected blocks of a directory durably: tiers and GC do not evict them, and Remove
// refuses them. boundBytes is the bound with which a tier opens the directory, of which half may be
// pinned. If it is zero, it is the number of bytes of the blocks. Pin returns file.ErrPinLimit, and
// pins nothing, if the blocks exceed the limit. It returns ErrBusy, and names the holder, if a process
// has the directory open.
func Pin(ctx context.Context, dir string, sel Selection, boundBytes int64) (Pinned, error) {
	return changePins(ctx, dirfs.OS(), dir, &sel, func(t *Tier, keys []block.Key) ([]block.Key, error) {
		if boundBytes == 0 {
			boundBytes = t.count.bytes.Load()
		}
		return keys, t.pin(ctx, keys, boundBytes)
	})
}

// Unpin removes the pins of the selected blocks of a directory durably. It returns ErrBusy, and
// names the holder, if a process has the directory open.
func Unpin(ctx context.Context, dir string, sel Selection) (Pinned, error) {
	return changePins(ctx, dirfs.OS(), dir, &sel, func(t *Tier, keys []block.Key) ([]block.Key, error) {
		keys = slices.DeleteFunc(keys, func(key block.Key) bool { return !t.pins.Has(key) })
		return keys, t.Unpin(ctx, keys)
	})
}

// changePins changes the pins of the selected blocks of a directory that no process has open.
func changePins(ctx context.Context, fsys dirfs.FS, path string, sel *Selection, change func(t *Tier, keys []block.Key) ([]block.Key, error)) (p Pinned, err error) {
	err = withSelected(ctx, fsys, path, "change pins", sel, func(t *Tier, keys []block.Key) error {
		had := make(map[block.Key]bool, len(keys))
		for _, key := range keys {
			had[key] = t.pins.Has(key)
		}
		if p.Selected, err = change(t, keys); err != nil {
			return err
		}
		for key := range had {
			if t.pins.Has(key) != had[key] {
				p.Keys = append(p.Keys, key)
				p.Bytes += t.formats.ImageBytes(key)
			}
		}
		p.Total = t.pins.Total(t.formats)
		return nil
	})
	return p, err
}
