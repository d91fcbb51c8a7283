package nic

import (
	"context"
	"fmt"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream"
	"github.com/kvlane/kvlane/stream/ordered"
)

// The reasons in completions.
const (
	ReasonLoopback  = "a NIC's loopback queue pairs"
	ReasonEmpty     = "no bytes to copy"
	ReasonUnstarted = "ended before it started"
)

// op is an accepted, unresolved batch.
type op struct {
	ordered.Batch
	stream   *Stream
	bytes    int64
	pieces   int
	uses     uses
	batch    *mem.Batch
	manifest *manifest

	// guarded by Stream.hw
	at cursor
}

// Submit implements stream.Stream. If the batch may start, Submit posts its first requests. It
// blocks only until the stream accepts the batch, and for registration with Options.RegisterOnUse.
func (s *Stream) Submit(ctx context.Context, b *mem.Batch) (*stream.Ticket, error) {
	o, err := s.prepare(b)
	if err != nil {
		return nil, fmt.Errorf("submit batch: %w", err)
	}
	return s.submit(ctx, o)
}

// submit appends o to the stream.
func (s *Stream) submit(ctx context.Context, o *op) (*stream.Ticket, error) {
	t, err := s.life.Submit(ctx, o, &o.Batch, o.batch.After)
	if err != nil {
		s.freeManifest(o.manifest)
		return nil, fmt.Errorf("submit batch: %w", err)
	}
	return t, nil
}

// prepare checks b and acquires its memory.
func (s *Stream) prepare(b *mem.Batch) (*op, error) {
	if b == nil {
		return nil, fmt.Errorf("the batch is nil: %w", errdefs.ErrInvalid)
	}
	o := &op{stream: s, batch: b, pieces: b.Pieces(), manifest: s.newManifest()}
	if err := s.buildManifest(o); err != nil {
		s.freeManifest(o.manifest)
		return nil, err
	}
	return o, nil
}

// newManifest returns an empty manifest from the free list, or a new one.
func (s *Stream) newManifest() *manifest {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(s.freeManifests)
	if n == 0 {
		return new(manifest)
	}
	m := s.freeManifests[n-1]
	s.freeManifests = s.freeManifests[:n-1]
	return m
}

// freeManifest releases the memory of m and puts m on the free list.
func (s *Stream) freeManifest(m *manifest) {
	m.release()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.freeManifests = append(s.freeManifests, m)
}
