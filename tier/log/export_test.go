package log

import (
	"context"

	"github.com/kvlane/kvlane/internal/dirfs"
)

// VerifyOn is Verify on a given file system.
func VerifyOn(ctx context.Context, fsys dirfs.FS, dir string) (Report, error) {
	return verify(ctx, fsys, dir, nil)
}

// GroupBytes sets the maximum size of one write. If more bytes wait, further appenders start.
func GroupBytes(c *Config, bytes int64) { c.groupBytes = bytes }

// Checkpoint writes a checkpoint.
func Checkpoint(t *Tier) error { return t.checkpoint() }

// Used returns the number of bytes that the segments use.
func Used(t *Tier) int64 { return t.space.usedBytes() }

// Segments returns the number of segments.
func Segments(t *Tier) int { return len(t.segments.list()) }

// Sync makes all blocks durable.
func Sync(t *Tier) error { return t.syncAll(context.Background()) }

// CheckpointBytes sets the number of bytes between two checkpoints.
func CheckpointBytes(c *Config, bytes int64) { c.checkpointBytes = bytes }

// Bound sets the bound of an open tier. Blocks that are already retained are not evicted.
func Bound(t *Tier, bytes int64) {
	t.space.mu.Lock()
	defer t.space.mu.Unlock()
	t.space.most, t.space.configured = bytes, bytes
}

// Compact empties the segments that consist mostly of unused bytes, and keeps all blocks.
func Compact(t *Tier) error {
	_, err := t.collect(context.Background(), t.garbage, sweep{all: true})
	return err
}

// Seal ends the segments that are being appended to.
func Seal(t *Tier) error { return t.sealAll() }

// RemoveOn is Remove on a given file system.
func RemoveOn(ctx context.Context, fsys dirfs.FS, dir string, sel Selection) (Removed, error) {
	return remove(ctx, fsys, dir, sel)
}

// Credit returns the number of bytes put minus the number of bytes moved.
func Credit(t *Tier) int64 { return t.credit.Load() }
