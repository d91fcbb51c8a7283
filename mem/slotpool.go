package mem

import (
	"context"
	"fmt"
	"math"
	"slices"
	"sync"

	"github.com/kvlane/kvlane/errdefs"
)

// Allocator allocates memory of one kind. Implementations are safe for concurrent use.
type Allocator interface {
	// Alloc returns a region of this many bytes. It returns ErrNoMemory if there is not enough
	// memory.
	Alloc(bytes int64) (*Region, error)
	// Free frees a region returned by Alloc. Hardware must no longer access it.
	Free(r *Region) error
}

// SlotPool lends slots of equal length from one region. All methods are safe for concurrent use.
type SlotPool struct {
	alloc Allocator
	slots Slots
	zero  func(e Extent) error // called for each slot whose loan ends; may be nil

	mu       sync.Mutex
	closing  bool
	freed    bool
	free     []uint32      // stack of free slots
	lent     []uint32      // by slot: number of its loan, or zero while the slot is free
	loans    uint32        // number of the last loan
	waiters  []*slotWaiter // in the order of their calls
	quiesced chan struct{} // closed when no slot is in quarantine; nil if none is
	stats    SlotPoolStats
}

// SlotPoolStats describes a pool.
type SlotPoolStats struct {
	Slots       int   // number of slots
	Lent        int   // lent slots, including quarantined ones
	HighWater   int   // most slots lent at a time
	Quarantined int   // slots that hardware may still access
	Waiting     int   // calls of Acquire that are waiting
	Waits       int64 // calls of Acquire that have waited
	Unzeroed    int64 // failures to zero a slot, which stays lent or in quarantine
}

// PoolSlot is a lent slot. It has one owner at a time, and may be copied.
type PoolSlot struct {
	pool  *SlotPool
	index uint32
	loan  uint32
}

// slotWaiter is a waiting call of Acquire. Its result is written under mu before done is closed.
type slotWaiter struct {
	done chan struct{}
	slot PoolSlot
	err  error
}

// NewSlotPool returns a pool of n slots of stride bytes, which it allocates from a. It returns
// ErrInvalid if n or stride is not positive or too large, and the errors of a.
func NewSlotPool(a Allocator, n, stride int64) (*SlotPool, error) {
	if n <= 0 || n > math.MaxInt32 || stride <= 0 || n > math.MaxInt64/stride {
		return nil, fmt.Errorf("open pool of %d slots of %d bytes: %w", n, stride, errdefs.ErrInvalid)
	}
	r, err := a.Alloc(n * stride)
	if err != nil {
		return nil, fmt.Errorf("open pool of %d slots of %d bytes: %w", n, stride, err)
	}
	p := &SlotPool{alloc: a, slots: Slots{Region: r, Stride: stride}, free: make([]uint32, n), lent: make([]uint32, n)}
	for i := range p.free {
		p.free[i] = uint32(n) - 1 - uint32(i) // slot 0 is lent first
	}
	p.stats.Slots = int(n)
	return p, nil
}

// Slots returns the array of slots.
func (p *SlotPool) Slots() Slots { return p.slots }

// Stats returns the statistics of the pool.
func (p *SlotPool) Stats() SlotPoolStats {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.stats
	s.Lent, s.Waiting = s.Slots-len(p.free), len(p.waiters)
	return s
}

// Acquire lends a slot. While all are lent it waits, in the order of the calls. If ctx ends first,
// it returns ErrBusy with the cause. It does not wait if ctx has already ended. It returns
// ErrClosed after Close was called.
func (p *SlotPool) Acquire(ctx context.Context) (PoolSlot, error) {
	s, w, err := p.acquireOrQueue()
	if w == nil {
		return s, err
	}
	select {
	case <-w.done:
		return w.slot, w.err
	case <-ctx.Done():
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	at := slices.Index(p.waiters, w)
	if at < 0 {
		return w.slot, w.err // resolved concurrently
	}
	p.waiters = slices.Delete(p.waiters, at, at+1)
	return PoolSlot{}, fmt.Errorf("acquire a slot: all %d are lent: %w: %w", p.stats.Slots, errdefs.ErrBusy, context.Cause(ctx))
}

// TryAcquire lends a slot. It returns ErrBusy while all are lent, and ErrClosed after Close was
// called.
func (p *SlotPool) TryAcquire() (PoolSlot, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.closing:
		return PoolSlot{}, errPoolClosed
	case len(p.free) == 0:
		return PoolSlot{}, fmt.Errorf("acquire a slot: all %d are lent: %w", p.stats.Slots, errdefs.ErrBusy)
	}
	return p.lend(), nil
}

func (p *SlotPool) acquireOrQueue() (PoolSlot, *slotWaiter, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.closing:
		return PoolSlot{}, nil, errPoolClosed
	case len(p.free) > 0: // no call is waiting in this case
		return p.lend(), nil, nil
	}
	w := &slotWaiter{done: make(chan struct{})}
	p.waiters = append(p.waiters, w)
	p.stats.Waits++
	return PoolSlot{}, w, nil
}

var errPoolClosed = fmt.Errorf("acquire a slot: the pool is closed: %w", errdefs.ErrClosed)

// lend lends the top of the free slots. The caller holds mu.
func (p *SlotPool) lend() PoolSlot {
	n := len(p.free) - 1
	i := p.free[n]
	p.free = p.free[:n]
	p.stats.HighWater = max(p.stats.HighWater, p.stats.Slots-n)
	p.lent[i] = p.nextLoan()
	return PoolSlot{p, i, p.lent[i]}
}

// nextLoan returns the number of a new loan. The caller holds mu.
func (p *SlotPool) nextLoan() uint32 {
	if p.loans++; p.loans == 0 { // zero marks free slots
		p.loans++
	}
	return p.loans
}

// end ends a loan. The caller holds mu.
func (p *SlotPool) end(i uint32) {
	p.lent[i] = 0
	p.free = append(p.free, i)
	if len(p.waiters) > 0 {
		w := p.waiters[0]
		p.waiters = slices.Delete(p.waiters, 0, 1)
		w.slot = p.lend()
		close(w.done)
	}
}

// Close refuses new loans and frees the memory. It first waits for slots in quarantine until ctx
// ends. It returns ErrBusy while slots are lent, and may be called again. A second Close after
// success returns nil.
func (p *SlotPool) Close(ctx context.Context) error {
	p.mu.Lock()
	p.closing = true
	for _, w := range p.waiters {
		w.err = errPoolClosed
		close(w.done)
	}
	p.waiters = nil
	quiesced := p.quiesced
	p.mu.Unlock()
	if quiesced != nil {
		select {
		case <-quiesced:
		case <-ctx.Done():
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if lent := p.stats.Slots - len(p.free); lent > 0 {
		return fmt.Errorf("close pool of slots: %d of %d are lent, %d of them in quarantine: %w", lent, p.stats.Slots, p.stats.Quarantined, errdefs.ErrBusy)
	}
	if p.freed {
		return nil
	}
	if err := p.alloc.Free(p.slots.Region); err != nil {
		return fmt.Errorf("close pool of slots: %w", err)
	}
	p.freed = true
	return nil
}

// Index returns the number of the slot in SlotPool.Slots.
func (s PoolSlot) Index() uint32 { return s.index }

// Extent returns the memory of the slot.
func (s PoolSlot) Extent() Extent { return s.pool.slots.At(s.index) }

// Release ends the loan. Hardware must no longer access the slot; if that is not certain, call
// Quarantine. Release panics if the loan has already ended, because the slot may have another
// owner, which would read or write wrong bytes.
func (s PoolSlot) Release() {
	if err := s.release(); err != nil {
		panic(err)
	}
}

// release implements Release and returns an error instead of panicking. If zeroing fails, the loan
// is open again.
func (s PoolSlot) release() error {
	p := s.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := s.check("released"); err != nil {
		return err
	}
	if p.zero != nil {
		p.lent[s.index] = p.nextLoan() // makes a second release of this loan fail
		p.mu.Unlock()
		err := p.zero(s.Extent())
		p.mu.Lock()
		if err != nil {
			p.lent[s.index] = s.loan
			p.stats.Unzeroed++
			return err
		}
	}
	p.end(s.index)
	return nil
}

// Quarantine ends the loan when quiesced is closed. Until then the slot is not lent again. It
// panics if the loan has already ended.
func (s PoolSlot) Quarantine(quiesced <-chan struct{}) {
	if err := s.quarantine(quiesced); err != nil {
		panic(err)
	}
}

// quarantine implements Quarantine and returns an error instead of panicking.
func (s PoolSlot) quarantine(quiesced <-chan struct{}) error {
	p := s.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := s.check("put in quarantine"); err != nil {
		return err
	}
	p.lent[s.index] = p.nextLoan() // makes a second release of this loan fail
	if p.stats.Quarantined++; p.quiesced == nil {
		p.quiesced = make(chan struct{})
	}
	go func() { // joined by Close
		<-quiesced
		var err error
		if p.zero != nil {
			err = p.zero(s.Extent())
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		if err != nil {
			p.stats.Unzeroed++
			return
		}
		p.end(s.index)
		if p.stats.Quarantined--; p.stats.Quarantined == 0 {
			close(p.quiesced)
			p.quiesced = nil
		}
	}()
	return nil
}

// check returns ErrInvalid unless the loan is open. The caller holds mu.
func (s PoolSlot) check(op string) error {
	if s.pool.lent[s.index] != s.loan || s.loan == 0 {
		return fmt.Errorf("mem: slot %d of a pool is %s after its loan has ended: %w", s.index, op, errdefs.ErrInvalid)
	}
	return nil
}
