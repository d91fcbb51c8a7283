package nic

import (
	"context"
	"fmt"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream"
	"github.com/kvlane/kvlane/stream/ordered"
)

// The reasons that completions carry.
const (
	ReasonLoopback  = "a NIC's loopback queue pairs"
	ReasonEmpty     = "nothing to copy"
	ReasonUnstarted = "ended before it started"
)

// op is a batch that is accepted and unresolved.
type op struct {
	ordered.Batch
	stream *Stream
	bytes  int64
	pieces int
	uses   uses
	batch  *mem.Batch
	needs  *manifest

	// Guarded by Stream.hw.
	at cursor
}

// Submit implements stream.Stream. It posts the first requests of the batch itself when nothing is before it; it waits for
// nothing except a place in the stream, and memory to be registered with Options.RegisterOnUse.
func (s *Stream) Submit(ctx context.Context, b *mem.Batch) (*stream.Ticket, error) {
	o, err := s.prepare(b)
	if err != nil {
		return nil, fmt.Errorf("submit batch: %w", err)
	}
	return s.enter(ctx, o)
}

// enter appends o to the stream.
func (s *Stream) enter(ctx context.Context, o *op) (*stream.Ticket, error) {
	t, err := s.life.Submit(ctx, o, &o.Batch, o.batch.After)
	if err != nil {
		s.giveBack(o.needs)
		return nil, fmt.Errorf("submit batch: %w", err)
	}
	return t, nil
}

// prepare checks b and takes hold of its memory.
func (s *Stream) prepare(b *mem.Batch) (*op, error) {
	if b == nil {
		return nil, fmt.Errorf("there is no batch: %w", errdefs.ErrInvalid)
	}
	o := &op{stream: s, batch: b, pieces: b.Pieces(), needs: s.manifest()}
	if err := s.load(o); err != nil {
		s.giveBack(o.needs)
		return nil, err
	}
	return o, nil
}

// manifest returns an empty one.
func (s *Stream) manifest() *manifest {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(s.spare)
	if n == 0 {
		return new(manifest)
	}
	m := s.spare[n-1]
	s.spare = s.spare[:n-1]
	return m
}

// giveBack releases m's memory.
func (s *Stream) giveBack(m *manifest) {
	m.release()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.spare = append(s.spare, m)
}
