package blockhost

import (
	"context"
	"errors"
	"fmt"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/tier"
)

// Find reports whether a block is complete, and whether it is durable. It is no use of the block.
func (s *Space) Find(ctx context.Context, key block.Key) (present, durable bool, err error) {
	if s.disk != nil {
		var state [1]tier.State
		if err := s.disk.Lookup(ctx, []block.Key{key}, state[:]); err != nil {
			return false, false, err
		}
		durable = state[0] == tier.Ready
	}
	return durable || s.Contains(key), durable, nil
}

// retain leases a block on disk. The result has no space if the block is not there.
func (s *Space) retain(ctx context.Context, key block.Key) (Block, error) {
	if s.disk == nil {
		return Block{}, nil
	}
	h, t, n := s.h, s.t, s.format.Layout.ImageBytes()
	h.mu.Lock()
	most := h.o.Disk.TenantBytes / 2
	if most > 0 && t.retained+n > most {
		h.mu.Unlock()
		return Block{}, fmt.Errorf("lease block %s: leases have %d bytes of %d on disk: %w", key, t.retained, 2*most, errdefs.ErrBusy)
	}
	t.retained += n // before the tier: another lease may come
	h.mu.Unlock()
	pins, err := s.disk.Retain(ctx, []block.Key{key})
	h.mu.Lock()
	defer h.mu.Unlock()
	if pins == 0 {
		t.retained -= n
		return Block{}, err
	}
	t.usage.Hits++
	t.usage.Leased++
	return Block{s: s, key: key}, nil
}

// releaseDisk ends a lease on disk. It does nothing for the zero Block.
func (b Block) releaseDisk() {
	if b.s == nil {
		return
	}
	b.s.disk.Release([]block.Key{b.key})
	b.s.h.mu.Lock()
	defer b.s.h.mu.Unlock()
	b.s.t.retained -= b.s.format.Layout.ImageBytes()
	b.s.t.usage.Leased--
}

// deleteDisk deletes a block on disk, unless the block in memory may not be deleted.
func (s *Space) deleteDisk(ctx context.Context, key block.Key) (deleted bool, err error) {
	if s.disk == nil {
		return false, nil
	}
	s.h.mu.Lock()
	e := s.blocks[key]
	switch {
	case e == nil:
	case e.leases > 0:
		err = fmt.Errorf("delete block %s: %w", key, ErrLeased)
	case !e.ready || e.write != nil:
		err = fmt.Errorf("delete block %s: it is incomplete, or being written: %w", key, errdefs.ErrBusy)
	}
	s.h.mu.Unlock()
	if err != nil {
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
