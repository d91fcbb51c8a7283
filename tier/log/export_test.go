package log

import (
	"context"

	"github.com/kvlane/kvlane/internal/dirfs"
)

// VerifyOn is Verify on another file system than the operating system's.
func VerifyOn(ctx context.Context, fsys dirfs.FS, dir string) (Report, error) {
	return verify(ctx, fsys, dir, nil)
}

// GroupBytes sets the maximum of one write. More appenders run while so much is waiting.
func GroupBytes(c *Config, bytes int64) { c.groupBytes = bytes }

// Checkpoint writes one now.
func Checkpoint(t *Tier) error { return t.checkpoint() }

// Used is how many bytes the segments take.
func Used(t *Tier) int64 { return t.space.usedBytes() }

// Segments is how many there are.
func Segments(t *Tier) int { return len(t.segments.list()) }

// Sync makes all blocks durable.
func Sync(t *Tier) error { return t.syncAll(context.Background()) }

// CheckpointBytes sets how much is written between two checkpoints.
func CheckpointBytes(c *Config, bytes int64) { c.checkpointBytes = bytes }

// Bound sets the bound of an open tier. Blocks retained by then are not evicted.
func Bound(t *Tier, bytes int64) {
	t.space.mu.Lock()
	defer t.space.mu.Unlock()
	t.space.most, t.space.configured = bytes, bytes
}

// Credit is the bytes that were put, less those that were moved.
func Credit(t *Tier) int64 { return t.credit.Load() }
