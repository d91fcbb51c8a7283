package task

import (
	"context"
	"fmt"
	"sync"

	"github.com/jonboulle/clockwork"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/store/pool"
	"github.com/kvlane/kvlane/store/stat"
)

// Kind is a kind of tasks that are bounded together.
type Kind uint8

// The kinds of tasks. Prefetches count as loads. Dumps are separate, because a slow disk may delay
// them and must not delay loads.
const (
	Load Kind = iota
	Dump
	kinds
)

// Scheduler bounds the number of running tasks and ends them when the store closes. All methods are
// safe for concurrent use.
type Scheduler struct {
	clock   clockwork.Clock
	runners *pool.Runners
	waits   stat.Histogram // of Begin
	closing chan struct{}  // closed by Close
	tokens  [kinds]chan struct{}
	ctx     [kinds]context.Context
	cancel  [kinds]context.CancelCauseFunc

	mu     sync.Mutex
	closed bool
	wg     sync.WaitGroup // running tasks; Add is not called after closed is set
	ended  chan struct{}  // closed when all tasks have ended; made by Close
}

// NewScheduler returns a scheduler of up to maxTasks tasks of each kind.
func NewScheduler(maxTasks int, clock clockwork.Clock) *Scheduler {
	s := &Scheduler{clock: clock, runners: pool.NewRunners(), closing: make(chan struct{})}
	for k := range kinds {
		s.tokens[k] = make(chan struct{}, maxTasks)
		s.ctx[k], s.cancel[k] = context.WithCancelCause(context.Background())
	}
	return s
}

// Begin waits until a task may start, or until ctx ends. Each Begin that returns nil needs one End.
func (s *Scheduler) Begin(ctx context.Context, kind Kind) error {
	select {
	case <-s.closing:
		return errdefs.ErrClosed
	default:
	}
	tokens := s.tokens[kind]
	select {
	case tokens <- struct{}{}: // first, because ctx of a call that must not wait has ended
		s.waits.Observe(0)
	default:
		start := s.clock.Now()
		defer func() { s.waits.Observe(s.clock.Now().Sub(start)) }()
		select {
		case tokens <- struct{}{}:
		case <-s.closing:
			return errdefs.ErrClosed
		case <-ctx.Done():
			return fmt.Errorf("wait for one of %d tasks to end: %w: %w", cap(tokens), errdefs.ErrBusy, context.Cause(ctx))
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		<-tokens
		return errdefs.ErrClosed
	}
	s.wg.Add(1)
	return nil
}

// End ends a task that Begin started.
func (s *Scheduler) End(kind Kind) {
	<-s.tokens[kind]
	s.wg.Done()
}

// Start runs t in a goroutine.
func (s *Scheduler) Start(t pool.Runner) { s.runners.Start(t) }

// Running returns the number of running tasks.
func (s *Scheduler) Running() int { return len(s.tokens[Load]) + len(s.tokens[Dump]) }

// Waits returns the distribution of the durations of Begin.
func (s *Scheduler) Waits() stat.Latency { return s.waits.Read() }

// Closing returns a channel that Close closes.
func (s *Scheduler) Closing() <-chan struct{} { return s.closing }

// Close refuses new tasks and cancels loads. It does not wait, and may be called again. The
// returned channel is closed when all tasks have ended.
func (s *Scheduler) Close() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return s.ended
	}
	s.closed = true
	// Cancel loads before closing, which ends layerwise dumps: loads may wait for their blocks.
	s.cancel[Load](fmt.Errorf("store is closing: %w", errdefs.ErrClosed))
	close(s.closing)
	s.ended = make(chan struct{})
	go func() { // ends with the last task
		s.wg.Wait()
		close(s.ended)
	}()
	return s.ended
}

// CancelDumps cancels all dumps.
func (s *Scheduler) CancelDumps(cause error) { s.cancel[Dump](cause) }

// StopRunners stops the goroutines of tasks. All tasks must have ended.
func (s *Scheduler) StopRunners() { s.runners.Close() }
