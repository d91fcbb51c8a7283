package sim

import (
	"fmt"

	"github.com/kvlane/kvlane/internal/leak"
	"github.com/kvlane/kvlane/internal/sys/hostmem"
	"github.com/kvlane/kvlane/mem"
)

// quarantined is freed pinned memory that is still mapped and filled with PoisonFreed.
type quarantined struct {
	bytes []byte
	dev   mem.DevAddr
}

// Free releases r. Like a driver, it waits for running operations, and enqueued operations will
// fail because their memory is freed. With Options.Interleave, Free does not wait.
func (d *Device) Free(r *mem.Region) error {
	const call = "simMemFree"
	if f, hit := d.o.Faults.Hit(OpFree); hit {
		return fmt.Errorf("free %s: %w", r, errInjected(call, &f))
	}
	if r == nil {
		return fmt.Errorf("free: %w", errInvalidValue(call, "", "no region"))
	}
	if err := d.standStill(call); err != nil {
		return fmt.Errorf("free %s: %w", r, err)
	}
	d.space.mu.Lock()
	sp := d.space.of(r)
	if sp == nil {
		text := d.whyNotMine(r)
		d.space.mu.Unlock()
		return fmt.Errorf("free %s: %w", r, errInvalidValue(call, fmt.Sprintf("address=%#x", r.Dev()), text))
	}
	b := sp.bytes
	d.space.kill(sp)
	d.space.mu.Unlock()
	d.dispose(sp, b)
	return nil
}

// whyNotMine returns the reason why r cannot be freed or used. The caller holds space.mu.
func (d *Device) whyNotMine(r *mem.Region) string {
	if sp := d.space.find(r.Dev()); sp != nil && sp.region == r {
		return "the region was freed already"
	}
	return "the region is not of this device, or was freed long ago"
}

// dispose frees the memory b of a span that was removed from the address space.
func (d *Device) dispose(sp *span, b []byte) {
	if !sp.imported {
		d.refund(sp.kind, sp.len)
	}
	if err := sp.unshare(); err != nil {
		d.misused(fmt.Errorf("close the file behind memory at %#x: %w", uint64(sp.base), err))
	}
	leak.Add(sp.counter(), -sp.len)
	switch {
	case !sp.owned:
	case sp.kind == mem.KindDevice || d.o.QuarantineBytes < sp.len:
		d.unmap(b)
	default:
		fill(b, PoisonFreed)
		d.mu.Lock()
		d.quarantine = append(d.quarantine, quarantined{bytes: b, dev: sp.base})
		d.quarBytes += sp.len
		d.mu.Unlock()
		d.release(d.o.QuarantineBytes)
	}
}

// release unmaps quarantined memory, oldest first, until at most keep bytes are left. It records
// late writes to that memory.
func (d *Device) release(keep int64) {
	for {
		d.mu.Lock()
		if len(d.quarantine) == 0 || d.quarBytes <= keep {
			d.mu.Unlock()
			return
		}
		old := d.quarantine[0]
		d.quarantine = d.quarantine[1:]
		d.quarBytes -= int64(len(old.bytes))
		d.mu.Unlock()
		for i, v := range old.bytes {
			if v != PoisonFreed {
				d.misused(fmt.Errorf("byte %d of the %d pinned bytes at %#x was written after they were freed", i, len(old.bytes), old.dev))
				break
			}
		}
		d.unmap(old.bytes)
	}
}

func (d *Device) unmap(b []byte) {
	if err := hostmem.Free(b); err != nil {
		d.misused(err)
	}
}

// reclaim frees every remaining region, and returns their number and total size.
func (d *Device) reclaim() (regions int, bytes int64) {
	d.space.mu.Lock()
	left := d.space.live()
	memory := make([][]byte, len(left))
	for i, sp := range left {
		memory[i] = sp.bytes
		d.space.kill(sp)
	}
	d.space.mu.Unlock()
	for i, sp := range left {
		bytes += sp.len
		d.dispose(sp, memory[i])
	}
	return len(left), bytes
}
