package blockhost

import (
	"context"
	"errors"
	"fmt"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/tier"
	"github.com/kvlane/kvlane/tier/owner"
)

// diskOwner is the owner of a space's directory.
type diskOwner struct {
	tier.Pinner
	s    *Space
	disk tier.Tier
}

// serve lets commands reach the host by a socket in a directory that it has opened. Without it,
// commands for the directory are refused while it is open.
func (s *Space) serve(disk tier.Tier) []*owner.Server {
	t, ok := disk.(interface {
		tier.Pinner
		Serve(o owner.Owner) ([]*owner.Server, error)
	})
	if !ok {
		return nil
	}
	servers, err := t.Serve(diskOwner{t, s, disk})
	if err != nil {
		return nil // a command names the process
	}
	return servers
}

// closeServed closes the sockets of a tier, then the tier. Both may be called again.
func closeServed(ctx context.Context, servers []*owner.Server, disk tier.Tier) error {
	for _, s := range servers {
		if err := s.Close(ctx); err != nil {
			return err
		}
	}
	return disk.Close(ctx)
}

// Remove removes blocks on disk and in memory. Leased blocks, and those that are incomplete or being
// written, stay: tier.Removed.Left wraps ErrBusy.
func (o diskOwner) Remove(ctx context.Context, keys []block.Key) (r tier.Removed, err error) {
	var idle []block.Key
	var left []error
	for _, key := range keys {
		if err := o.s.checkIdle(key); err != nil {
			left = append(left, err)
		} else {
			idle = append(idle, key)
		}
	}
	m, ok := o.disk.(tier.Remover)
	if !ok {
		return r, fmt.Errorf("remove blocks: %w", errdefs.ErrNotSupported)
	}
	if r, err = m.Remove(ctx, idle); err != nil {
		return r, err
	}
	removed := make(map[block.Key]bool, len(r.Keys))
	for _, key := range r.Keys {
		removed[key] = true
	}
	for _, key := range idle {
		switch err := o.s.Delete(ctx, key); {
		case err == nil && !removed[key]:
			r.Keys = append(r.Keys, key)
		case err != nil && !errors.Is(err, errdefs.ErrNotFound) && (removed[key] || r.Left == nil):
			left = append(left, err) // otherwise r.Left has the reason of the disk
		}
	}
	r.Left = errors.Join(append(left, r.Left)...)
	return r, nil
}

// checkIdle returns ErrLeased or ErrBusy if a block in memory may not be deleted.
func (s *Space) checkIdle(key block.Key) error {
	s.h.mu.Lock()
	defer s.h.mu.Unlock()
	switch e := s.blocks[key]; {
	case e == nil:
	case e.leases > 0:
		return fmt.Errorf("delete block %s: %w", key, ErrLeased)
	case !e.ready || e.write != nil:
		return fmt.Errorf("delete block %s: it is incomplete, or being written: %w", key, errdefs.ErrBusy)
	}
	return nil
}

// Why explains blocks in memory and on disk.
func (o diskOwner) Why(ctx context.Context, keys []block.Key) ([]tier.Why, error) {
	on, err := tier.Explain(ctx, o.disk, keys)
	if err != nil {
		return nil, err
	}
	all := make([]tier.Why, len(keys))
	for i, key := range keys {
		memory := tier.InTier{Tier: "memory"}
		if o.s.Contains(key) {
			memory.State = tier.Ready
		}
		all[i] = tier.Why{Key: key, Tiers: []tier.InTier{memory, {Tier: o.disk.Name(), Explanation: on[i]}}}
	}
	return all, nil
}
