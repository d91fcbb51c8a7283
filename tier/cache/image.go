package cache

import (
	"context"
	"errors"
	"fmt"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/tier"
)

// hostImage returns the bytes of e. It returns ErrInvalid unless e is host memory with the length
// of the block's image.
func (t *Tier) hostImage(key block.Key, e mem.Extent) ([]byte, error) {
	if t.slots.Region == nil {
		return nil, fmt.Errorf("the slots are in other processes: %w", errdefs.ErrNotSupported)
	}
	if err := e.Validate(); err != nil {
		return nil, err
	}
	f, err := t.formats.Of(key)
	if err != nil {
		return nil, err
	}
	n := f.Layout.ImageBytes()
	if b := e.Bytes(); b != nil && e.Len == n {
		return b, nil
	}
	return nil, fmt.Errorf("[%d, +%d) of the %s is no host memory of %d bytes: %w", e.Off, e.Len, e.Region, n, errdefs.ErrInvalid)
}

// Get copies the block's image to dst and verifies the copy. A block that is being filled counts as
// a miss.
func (t *Tier) Get(ctx context.Context, key block.Key, dst mem.Extent) error {
	if ctx.Err() != nil {
		return fmt.Errorf("get block %s: %w", key, context.Cause(ctx))
	}
	image, err := t.hostImage(key, dst)
	if err != nil {
		return fmt.Errorf("get block %s: %w", key, err)
	}
	slot, err := t.pinReady(key)
	if err != nil {
		return err
	}
	copy(image, t.slots.At(slot).Bytes())
	err = t.formats.Verify(image, key)
	t.mu.Lock()
	defer t.mu.Unlock()
	defer t.unpin(slot)
	if err == nil {
		t.stats.Hits++
		t.stats.ReadBytes += int64(len(image))
		return nil
	}
	t.stats.Misses++
	t.markCorrupt(slot, err)
	if errors.Is(err, errdefs.ErrCorrupt) {
		return fmt.Errorf("get block %s: %w", key, err)
	}
	return fmt.Errorf("get block %s: %w: %w", key, errdefs.ErrCorrupt, err)
}

func (t *Tier) pinReady(key block.Key) (uint32, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.checkOpen(); err != nil {
		return 0, err
	}
	slot, ok := t.index.find(&key)
	if !ok || t.entries[slot].state != tier.Ready {
		t.stats.Misses++
		return 0, fmt.Errorf("get block %s: %w", key, errdefs.ErrNotFound)
	}
	t.policy.use(slot)
	t.pin(slot)
	return slot, nil
}

// Put verifies the image in src and copies it to a slot. It waits for a slot until ctx ends. If
// another caller is filling the block, Put waits for that fill, and fills the block itself if the
// fill fails.
func (t *Tier) Put(ctx context.Context, key block.Key, src mem.Extent) error {
	err := t.put(ctx, key, src)
	if err == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.stats.Errors++
	return fmt.Errorf("put block %s: %w", key, err)
}

func (t *Tier) put(ctx context.Context, key block.Key, src mem.Extent) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	image, err := t.hostImage(key, src)
	if err != nil {
		return err
	}
	if err := t.formats.Verify(image, key); err != nil {
		return err
	}
	for {
		f, err := t.reserve(ctx, key)
		if err == nil {
			return f.write(image)
		}
		if !errors.Is(err, errdefs.ErrExists) {
			return err
		}
		// Each iteration waits for the end of a fill, so this does not spin.
		if ready, err := t.awaitOther(ctx, key); ready || err != nil {
			return err
		}
	}
}

// awaitOther waits while another caller fills the block. It reports whether the block is then
// Ready.
func (t *Tier) awaitOther(ctx context.Context, key block.Key) (bool, error) {
	t.mu.Lock()
	slot, ok := t.index.find(&key)
	if !ok {
		t.mu.Unlock()
		return false, nil
	}
	e := &t.entries[slot]
	if e.state == tier.Ready {
		t.mu.Unlock()
		return true, nil
	}
	f := e.addWaiter()
	t.mu.Unlock()
	if _, err := t.await(ctx, f, key); err != nil {
		if ctx.Err() != nil {
			return false, err
		}
		return false, nil // the fill failed: the block may be reserved again
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.unpin(f.slot)
	return true, nil
}

// write fills the slot with image and publishes it.
func (f *fill) write(image []byte) error {
	copy(f.Extent().Bytes(), image)
	s, err := f.Publish()
	if err != nil {
		return err
	}
	s.Release()
	return nil
}
