package blockhost

import (
	"context"
	"fmt"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/tier"
	"github.com/kvlane/kvlane/tier/owner"
)

// maxSpaces bounds the identities of a tenant.
const maxSpaces = 1024

// Space has the blocks of one identity of one tenant.
type Space struct {
	h       *Host
	t       *tenant
	format  block.Format
	blocks  map[block.Key]*entry
	retains map[block.Key]int // leases of blocks on disk
	users   int
	used    uint64          // the host's uses when the last user left
	disk    tier.Tier       // nil: none. It is set once, before Host.Space returns the space
	servers []*owner.Server // of the directory of disk; set with disk
	writes  int             // to disk, queued or in progress
	active  int             // of writes, in progress

	reads chan struct{} // has an element for each read from disk in progress
}

// Space returns the space of an identity of a tenant, until the caller calls Release. It returns
// ErrMismatch if the identity is known with another layout, and ErrNoSpace for images longer than
// the memory of a tenant, and if a tenant uses too many identities. Otherwise the identity that was
// not used for the longest time makes space for another one. With a disk it opens or makes the
// identity's directory, and returns the errors of that, or ErrCanceled if ctx ends before.
func (h *Host) Space(ctx context.Context, name string, f block.Format) (*Space, error) {
	for {
		s, closing, err := h.space(name, f)
		switch {
		case err != nil:
			return nil, err
		case closing == nil && h.o.Disk == nil:
			return s, nil
		case closing == nil:
			if err := s.openDisk(ctx, name); err != nil {
				s.Release()
				return nil, err
			}
			return s, nil
		}
		select {
		case <-closing:
		case <-ctx.Done():
			return nil, fmt.Errorf("open identity %s: %w: %w", f.Identity, errdefs.ErrCanceled, context.Cause(ctx))
		}
	}
}

// space returns the space of an identity, or a channel that is closed when a tier is closed.
func (h *Host) space(name string, f block.Format) (_ *Space, closing <-chan struct{}, _ error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if n, most := f.Layout.ImageBytes(), min(h.o.CapacityBytes, h.tenantBytes(name)); classBytes(n) > most {
		return nil, nil, fmt.Errorf("open identity with images of %d bytes, with memory of %d: %w", n, most, errdefs.ErrNoSpace)
	}
	t := h.tenants[name]
	if t == nil {
		t = &tenant{name: name, spaces: make(map[block.Digest]*Space), opening: make(chan struct{}, 1), closing: make(map[block.Digest]chan struct{})}
		h.tenants[name] = t
	}
	if c := t.closing[f.Identity]; c != nil {
		return nil, c, nil
	}
	s := t.spaces[f.Identity]
	if h.closed {
		return nil, nil, fmt.Errorf("open identity %s: %w", f.Identity, errdefs.ErrClosed)
	}
	if s == nil && len(t.spaces) >= h.maxSpaces() && !t.forgetSpace() {
		return nil, nil, fmt.Errorf("open identity %d of a tenant, of at most %d: %w", len(t.spaces)+1, h.maxSpaces(), errdefs.ErrNoSpace)
	}
	if s == nil {
		s = &Space{h: h, t: t, format: f, blocks: make(map[block.Key]*entry), retains: make(map[block.Key]int), reads: make(chan struct{}, diskReads)}
		t.spaces[f.Identity] = s
	}
	if !s.format.Layout.Equal(f.Layout) {
		return nil, nil, fmt.Errorf("open identity %s with another layout: %w", f.Identity, errdefs.ErrMismatch)
	}
	s.users++
	return s, nil, nil
}

// Release ends the use of the space. Its blocks stay. It must be called once for each Space.
func (s *Space) Release() {
	s.h.mu.Lock()
	defer s.h.mu.Unlock()
	s.users--
	s.h.uses++
	s.used = s.h.uses
	s.forgetEmpty()
}

// forgetEmpty forgets a space without users, blocks and disk. The caller holds mu.
func (s *Space) forgetEmpty() {
	if s.users == 0 && len(s.blocks) == 0 && s.disk == nil && s.t.spaces[s.format.Identity] == s {
		delete(s.t.spaces, s.format.Identity)
	}
}

// forgetSpace drops the blocks of the unused space whose last user left first. It reports whether
// there is one. The caller holds mu.
func (t *tenant) forgetSpace() bool {
	var oldest *Space
	for _, s := range t.spaces {
		if s.users == 0 && s.writes == 0 && (oldest == nil || s.used < oldest.used) {
			oldest = s
		}
	}
	if oldest == nil {
		return false
	}
	for _, e := range oldest.blocks { // the last one ends the space
		if e.ready {
			t.usage.Evictions++
		}
		e.drop()
	}
	if oldest.disk != nil {
		var u Usage
		u.addDisks([]tier.Tier{oldest.disk})
		t.usage.DiskEvictions += u.DiskEvictions // the tier's own end with it
		delete(t.spaces, oldest.format.Identity)
		done := make(chan struct{})
		t.closing[oldest.format.Identity] = done
		oldest.h.writers.running.Go(func() { oldest.closeDisk(done) })
	}
	return true
}

// Spaces returns the number of identities of all tenants.
func (h *Host) Spaces() (n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, t := range h.tenants {
		n += len(t.spaces)
	}
	return n
}

// Layout returns the layout of the space's images.
func (s *Space) Layout() *block.Layout { return s.format.Layout }
