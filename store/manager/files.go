package manager

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jonboulle/clockwork"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/tier"
)

// DefaultFilesMax is the default of Config.FilesMax.
const DefaultFilesMax = time.Second

// files asks the file tiers of all ranks with a bounded wait: the scheduler of an engine must not
// block on a file server. A lookup of files cannot be canceled. It goes on by itself, and no other
// starts before it ends.
type files struct {
	ranks   []Rank
	max     time.Duration
	clock   clockwork.Clock
	asking  chan struct{}             // has one element during a lookup
	since   atomic.Pointer[time.Time] // start of that lookup, or nil
	overdue atomic.Int64              // blocks of lookups that took too long
}

func newFiles(c *Config) *files {
	f := &files{ranks: c.Ranks, max: c.FilesMax, clock: c.Clock, asking: make(chan struct{}, 1)}
	if f.max == 0 {
		f.max = DefaultFilesMax
	}
	return f
}

// inFiles reports for each block whether the files of every rank have it.
func (m *Manager) inFiles(ctx context.Context, blocks []Block) ([]bool, error) {
	if len(blocks) == 0 || m.files == nil {
		return nil, nil
	}
	there, err := m.files.look(ctx, func(ctx context.Context) ([]bool, error) { return m.askFiles(ctx, blocks) })
	if errors.Is(err, errdefs.ErrBusy) {
		m.files.overdue.Add(int64(len(blocks)))
	}
	return there, err
}

// look calls ask, unless an earlier call is overdue.
func (f *files) look(ctx context.Context, ask func(ctx context.Context) ([]bool, error)) ([]bool, error) {
	late := fmt.Errorf("look into files: they have not answered in %v: %w", f.max, errdefs.ErrBusy)
	if since := f.since.Load(); since != nil && f.clock.Since(*since) > f.max {
		return nil, late
	}
	timer := f.clock.NewTimer(f.max)
	defer timer.Stop()
	type answer struct {
		there []bool
		err   error
	}
	answers := make(chan answer, 1)
	for asking := f.asking; ; {
		select {
		case asking <- struct{}{}:
			asking = nil
			now := f.clock.Now()
			f.since.Store(&now)
			go func() {
				there, err := ask(ctx)
				f.since.Store(nil)
				<-f.asking
				answers <- answer{there, err}
			}()
		case a := <-answers:
			return a.there, a.err
		case <-timer.Chan():
			return nil, late
		case <-ctx.Done():
			return nil, fmt.Errorf("look into files: %w: %w", errdefs.ErrCanceled, context.Cause(ctx))
		}
	}
}

// askFiles reports for each block whether the files of every rank have it.
func (m *Manager) askFiles(ctx context.Context, blocks []Block) ([]bool, error) {
	there := make([]bool, len(blocks))
	states := make([]tier.State, len(blocks))
	for rank := range m.ranks {
		keys, err := m.keys(rank, blocks)
		if err == nil {
			err = m.ranks[rank].Files.Lookup(ctx, keys, states)
		}
		if err != nil {
			return nil, fmt.Errorf("look up %d blocks in the files of rank %d: %w", len(blocks), rank, err)
		}
		for i, s := range states {
			there[i] = s == tier.Ready && (rank == 0 || there[i])
		}
	}
	return there, nil
}
