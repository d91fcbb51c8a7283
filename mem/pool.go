package mem

import (
	"fmt"
	"math"
	"sync"

	"github.com/kvlane/kvlane/errdefs"
)

// PoolOptions says how a Pool treats its slots.
type PoolOptions struct {
	// ZeroOnPut clears a slot before it can be taken again, so that one user's bytes never reach another. The pool's
	// memory must then be within the CPU's reach.
	ZeroOnPut bool
}

// Pool hands out the slots of an array of equal slots, the last returned first. It does not own the memory. Safe for
// concurrent use; no method waits for a slot.
type Pool struct {
	slots Slots
	zero  bool

	mu    sync.Mutex
	free  []uint32 // a stack
	taken []bool   // by slot
}

// NewPool returns a pool of the first n slots of s, all free.
func NewPool(s Slots, n int, o PoolOptions) (*Pool, error) {
	fail := func(why string) (*Pool, error) {
		return nil, fmt.Errorf("make pool of %d slots of %d bytes from byte %d: %s: %w", n, s.Stride, s.Base, why, errdefs.ErrInvalid)
	}
	if n <= 0 || int64(n) > math.MaxUint32 {
		return fail("the number of slots is out of range")
	}
	if s.Base < 0 || s.Stride <= 0 {
		return fail("the base must not be negative and the stride must be positive")
	}
	last, err := lastIndex(s.Region, s.Base, s.Stride, s.Stride)
	if err != nil {
		return nil, fmt.Errorf("make pool of %d slots: %w", n, err)
	}
	if int64(n-1) > last {
		return fail(fmt.Sprintf("the %s holds %d", s.Region, last+1))
	}
	if o.ZeroOnPut && s.Region.bytes == nil {
		return fail("the CPU cannot reach the slots to clear them")
	}
	p := &Pool{slots: s, zero: o.ZeroOnPut, free: make([]uint32, n), taken: make([]bool, n)}
	for i := range p.free {
		p.free[i] = uint32(n - 1 - i) // slot 0 is taken first
	}
	return p, nil
}

// Slots returns the array that the pool's slot numbers index.
func (p *Pool) Slots() Slots { return p.slots }

// Len returns the number of slots, free and taken.
func (p *Pool) Len() int { return len(p.taken) }

// Free returns the number of slots that can be taken now.
func (p *Pool) Free() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.free)
}

// Get takes a slot. ErrBusy when all are taken.
func (p *Pool) Get() (uint32, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.free) == 0 {
		return 0, fmt.Errorf("take slot: all %d are taken: %w", len(p.taken), errdefs.ErrBusy)
	}
	s := p.free[len(p.free)-1]
	p.free = p.free[:len(p.free)-1]
	p.taken[s] = true
	return s, nil
}

// Put gives a slot back. ErrInvalid for a slot that is not of this pool or is not taken, which leaves the pool as it was.
func (p *Pool) Put(slot uint32) error {
	if err := p.untake(slot); err != nil {
		return err
	}
	// The slot is nobody's now: neither taken nor free. It is cleared without the lock.
	if p.zero {
		clear(p.slots.At(slot).Bytes())
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.free = append(p.free, slot)
	return nil
}

func (p *Pool) untake(slot uint32) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if int64(slot) >= int64(len(p.taken)) {
		return fmt.Errorf("give back slot %d: the pool has %d: %w", slot, len(p.taken), errdefs.ErrInvalid)
	}
	if !p.taken[slot] {
		return fmt.Errorf("give back slot %d: it is not taken: %w", slot, errdefs.ErrInvalid)
	}
	p.taken[slot] = false
	return nil
}
