package manager_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jonboulle/clockwork"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/store/manager"
	"github.com/kvlane/kvlane/tier"
)

// files is a file tier that only supports lookups.
type files struct {
	tier.Tier
	mu    sync.Mutex
	there map[block.Key]bool
	err   error
}

func (*files) Name() string { return "file" }

func (f *files) Lookup(_ context.Context, keys []block.Key, states []tier.State) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, k := range keys {
		if states[i] = tier.Absent; f.there[k] {
			states[i] = tier.Ready
		}
	}
	return f.err
}

// hung is a file tier that does not answer until answer is closed.
type hung struct {
	files
	asked  chan struct{}
	answer chan struct{}
}

func (h *hung) Lookup(ctx context.Context, keys []block.Key, states []tier.State) error {
	h.asked <- struct{}{}
	<-h.answer
	return h.files.Lookup(ctx, keys, states)
}

// A file server that does not answer must neither block the scheduler nor hide blocks in memory.
func TestDefectHungFilesStopTheScheduler(t *testing.T) {
	h := &hung{asked: make(chan struct{}, 100), answer: make(chan struct{})}
	fs := formats(t, 0, 1, 1)
	h.there = map[block.Key]bool{}
	clock := clockwork.NewFakeClock()
	m, err := manager.Open(manager.Config{Ranks: []manager.Rank{{Formats: fs, Below: []tier.Tier{h}}}, OpenPool: pool(8, fs), Clock: clock})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	store, err := m.Store([]manager.Block{{Hash: "a"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := store.End(); err != nil {
		t.Fatal(err)
	}
	ab := []manager.Block{{Hash: "a"}, {Hash: "b"}}
	h.there[fs.Key(0, []byte("b"))] = true
	for i := range 10 {
		ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience())
		if i == 0 {
			go func() {
				<-h.asked
				_ = clock.BlockUntilContext(ctx, 1)
				clock.Advance(manager.DefaultFilesMax + 1)
			}()
		}
		states, err := m.Lookup(ctx, ab) // all calls except the first return at once
		cancel()
		if !errors.Is(err, errdefs.ErrBusy) || !slices.Equal(states, []manager.State{manager.InPool, manager.Absent}) {
			t.Fatalf("lookup %d: %v, %v", i, states, err)
		}
	}
	if n := len(h.asked); n != 0 {
		t.Errorf("files were called %d more times while they did not answer", n)
	}
	if n := m.Stats().Overdue; n != 10 {
		t.Errorf("%d blocks were overdue, want 10", n)
	}
	if _, err := m.Load(t.Context(), ab); !errors.Is(err, errdefs.ErrNotFound) && !errors.Is(err, errdefs.ErrBusy) {
		t.Errorf("a load of an unknown block: %v", err)
	}
	close(h.answer)
	for deadline := time.Now().Add(testkit.Patience()); ; time.Sleep(time.Millisecond) {
		states, err := m.Lookup(t.Context(), ab)
		if err == nil && slices.Equal(states, []manager.State{manager.InPool, manager.InFiles}) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("files answer again: %v, %v", states, err)
		}
	}
}

func TestBlockFromFilesIsGivenTwice(t *testing.T) {
	m, below := open(t, 4, 1, 1)
	fs := formats(t, 0, 1, 1)
	below[0].there[fs.Key(0, []byte("a"))] = true
	if _, err := m.Load(t.Context(), named("a", "a")); !errors.Is(err, errdefs.ErrBusy) {
		t.Fatalf("a job with the block twice: %v, not ErrBusy", err)
	}
	j, err := m.Load(t.Context(), named("a"))
	if err != nil {
		t.Fatal(err)
	}
	end(t, j)
	if j, err = m.Load(t.Context(), named("a", "a")); err != nil {
		t.Fatalf("a job with the block twice from the pool: %v", err)
	}
	end(t, j)
}
