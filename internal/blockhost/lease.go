package blockhost

import (
	"context"
	"errors"
	"fmt"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/tier"
)

// Find reports which blocks are complete, and which are durable, in present and durable, of the
// length of keys. It is no use of the blocks.
func (s *Space) Find(ctx context.Context, keys []block.Key, present, durable []bool) error {
	clear(durable)
	if s.disk != nil {
		states := make([]tier.State, len(keys))
		if err := s.disk.Lookup(ctx, keys, states); err != nil {
			return err
		}
		for i, st := range states {
			durable[i] = st == tier.Ready
		}
	}
	for i, key := range keys {
		present[i] = durable[i] || s.Contains(key)
	}
	return nil
}

// LeasePrefix leases blocks in order, up to the first that Lease would not lease, whose error it
// returns.
func (s *Space) LeasePrefix(ctx context.Context, keys []block.Key) (blocks []Block, err error) {
	for len(blocks) < len(keys) {
		onDisk, err := s.retain(ctx, keys[len(blocks):])
		if blocks = append(blocks, onDisk...); err != nil {
			return blocks, err
		}
		inMemory, err := s.pinPrefix(keys[len(blocks):])
		if blocks = append(blocks, inMemory...); len(inMemory) == 0 && len(blocks) < len(keys) {
			return blocks, err
		}
	}
	return blocks, nil
}

// pinPrefix leases blocks in memory, up to the first error.
func (s *Space) pinPrefix(keys []block.Key) (blocks []Block, err error) {
	s.h.mu.Lock()
	defer s.h.mu.Unlock()
	for _, key := range keys {
		b, err := s.pin(key, true)
		if err != nil {
			return blocks, err
		}
		blocks = append(blocks, b)
	}
	return blocks, nil
}

// retain leases blocks on disk, up to the first that is not there.
func (s *Space) retain(ctx context.Context, keys []block.Key) ([]Block, error) {
	if s.disk == nil {
		return nil, nil
	}
	h, t, n := s.h, s.t, s.format.Layout.ImageBytes()
	h.mu.Lock()
	most := h.o.Disk.TenantBytes / 2
	asked := int64(0) // for keys without a lease
	for i, key := range keys {
		if s.retains[key] > 0 {
			continue
		}
		if most > 0 && t.retained+asked+n > most {
			keys = keys[:i]
			break
		}
		asked += n
	}
	if len(keys) == 0 {
		defer h.mu.Unlock()
		return nil, fmt.Errorf("lease a block: leases have %d bytes of %d on disk: %w", t.retained, 2*most, errdefs.ErrBusy)
	}
	t.retained += asked // before the tier: another lease may come
	h.mu.Unlock()
	pins, err := s.disk.Retain(ctx, keys)
	h.mu.Lock()
	defer h.mu.Unlock()
	t.retained -= asked
	t.usage.Hits += int64(pins)
	t.usage.Leased += int64(pins)
	blocks := make([]Block, pins)
	for i := range blocks {
		blocks[i] = Block{s: s, key: keys[i]}
		if s.retains[keys[i]]++; s.retains[keys[i]] == 1 {
			t.retained += n
		}
	}
	return blocks, err
}

// releaseDisk ends a lease on disk. It does nothing for the zero Block.
func (b Block) releaseDisk() {
	if b.s == nil {
		return
	}
	b.s.disk.Release([]block.Key{b.key})
	b.s.h.mu.Lock()
	defer b.s.h.mu.Unlock()
	b.s.t.usage.Leased--
	if b.s.retains[b.key]--; b.s.retains[b.key] == 0 {
		delete(b.s.retains, b.key)
		b.s.t.retained -= b.s.format.Layout.ImageBytes()
	}
}

// deleteDisk deletes a block on disk, unless the block in memory may not be deleted.
func (s *Space) deleteDisk(ctx context.Context, key block.Key) (deleted bool, err error) {
	if s.disk == nil {
		return false, nil
	}
	if err := s.checkIdle(key); err != nil {
		return false, err
	}
	err = s.disk.Delete(ctx, key)
	switch {
	case errors.Is(err, errdefs.ErrNotFound):
		return false, nil
	case errors.Is(err, errdefs.ErrBusy):
		return false, fmt.Errorf("delete block %s: %w", key, ErrLeased)
	}
	return err == nil, err
}
