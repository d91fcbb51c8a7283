package file

import (
	"errors"
	"fmt"
	"sync"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/internal/sys/hostmem"
	"github.com/kvlane/kvlane/mem"
)

// staging owns the chunks of host memory in which scattered memory is gathered. They are
// page-locked if there is a device.
type staging struct {
	dev    device.Device
	bytes  int64 // length of a chunk
	chunks int
	free   chan mem.Extent
	queues []bufferQueue

	mu     sync.Mutex
	region *mem.Region // nil: not allocated
	memory []byte      // memory of region
}

func newStaging(o *Options) *staging {
	return &staging{dev: o.Device, bytes: o.ChunkBytes, chunks: o.Chunks, free: make(chan mem.Extent, o.Chunks)}
}

// ready allocates the chunks on first use. slow is the reason why a queue could not register them,
// which only reduces speed.
func (s *staging) ready() (slow, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.region != nil {
		return nil, nil
	}
	n := s.bytes * int64(s.chunks)
	if err := s.allocate(n); err != nil {
		return nil, fmt.Errorf("allocate %d bytes of staging memory: %w", n, err)
	}
	for _, q := range s.queues {
		if err := q.useBuffer(s.region); err != nil {
			slow = errors.Join(slow, fmt.Errorf("register staging memory for path %s: %w", q.path(), err))
		}
	}
	for i := range s.chunks {
		s.free <- mem.Extent{Region: s.region, Off: int64(i) * s.bytes, Len: s.bytes}
	}
	return slow, nil
}

// allocate sets region and memory, or neither.
func (s *staging) allocate(bytes int64) error {
	b, err := hostmem.AllocLarge(bytes)
	if err != nil {
		return err
	}
	over := hostmem.Region
	if s.dev != nil {
		over = s.dev.RegisterHost
	}
	r, err := over(b)
	if err != nil {
		return errors.Join(err, hostmem.Free(b))
	}
	s.region, s.memory = r, b
	return nil
}

// close frees the chunks. No chunk may be in use.
func (s *staging) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.region == nil {
		return nil
	}
	if s.dev != nil {
		if err := s.dev.Free(s.region); err != nil {
			return err
		}
	}
	s.region = nil
	return hostmem.Free(s.memory)
}
