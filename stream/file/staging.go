package file

import (
	"fmt"
	"sync"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/internal/sys/hostmem"
	"github.com/kvlane/kvlane/mem"
)

// staging is the chunks of host memory that scattered memory is gathered in, page-locked where there is a device.
type staging struct {
	dev    device.Device
	bytes  int64 // of a chunk
	chunks int
	free   chan mem.Extent
	told   []bufferQueue

	mu     sync.Mutex
	region *mem.Region // nil: not allocated
	plain  []byte      // what region is of, without a device
}

func newStaging(o *Options) *staging {
	return &staging{dev: o.Device, bytes: o.ChunkBytes, chunks: o.Chunks, free: make(chan mem.Extent, o.Chunks)}
}

// ready allocates the chunks, the first time.
func (s *staging) ready() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.region != nil {
		return nil
	}
	n := s.bytes * int64(s.chunks)
	var err error
	if s.dev != nil {
		s.region, err = s.dev.AllocHost(n)
	} else if s.plain, err = hostmem.Alloc(n); err == nil {
		s.region, err = hostmem.Region(s.plain)
	}
	if err != nil {
		return fmt.Errorf("allocate %d bytes of staging memory: %w", n, err)
	}
	for _, q := range s.told {
		_ = q.useBuffer(s.region) // which is about speed alone
	}
	for i := range s.chunks {
		s.free <- mem.Extent{Region: s.region, Off: int64(i) * s.bytes, Len: s.bytes}
	}
	return nil
}

// close frees the chunks. All are free.
func (s *staging) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var err error
	switch {
	case s.region == nil:
		return nil
	case s.dev != nil:
		err = s.dev.Free(s.region)
	default:
		err = hostmem.Free(s.plain)
	}
	if err == nil {
		s.region = nil
	}
	return err
}
