package storage

import (
	"errors"
	"sync"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/mem"
)

// pool holds the free blocks of words, and the memory of all blocks.
type pool struct {
	dev device.Device

	mu    sync.Mutex
	slabs []*mem.Region
	free  []Words
}

// slabBlocks is the number of blocks that are allocated together: one page.
const slabBlocks = 4096 / WordsBytes

// grow allocates at least n blocks.
func (p *pool) grow(n int) error {
	n = (n + slabBlocks - 1) / slabBlocks * slabBlocks
	r, err := p.dev.AllocHost(int64(n) * WordsBytes)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.slabs = append(p.slabs, r)
	for i := range n {
		p.free = append(p.free, Words{mem.Extent{Region: r, Off: int64(i) * WordsBytes, Len: WordsBytes}})
	}
	return nil
}

func (p *pool) get() (Words, error) {
	for {
		if w, ok := p.take(); ok {
			return w, nil
		}
		if err := p.grow(slabBlocks); err != nil {
			return Words{}, err
		}
	}
}

func (p *pool) take() (Words, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	last := len(p.free) - 1
	if last < 0 {
		return Words{}, false
	}
	w := p.free[last]
	p.free = p.free[:last]
	return w, true
}

func (p *pool) put(w Words) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.free = append(p.free, w)
}

// close frees the memory. No block may be in use.
func (p *pool) close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var errs []error
	for _, r := range p.slabs {
		errs = append(errs, p.dev.Free(r))
	}
	p.slabs, p.free = nil, nil
	return errors.Join(errs...)
}
