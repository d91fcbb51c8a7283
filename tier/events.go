package tier

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/kvlane/kvlane/block"
)

// Change is the kind of an Event.
type Change uint8

// The kinds of events.
const (
	// EventLost means that the contents of all tiers may differ from the earlier events. It is the first
	// event of a Watcher, and follows when more than MaxEvents were waiting.
	EventLost Change = iota + 1
	// EventStored means that the block can be found in the tier. It may have been there before.
	EventStored
	// EventRemoved means that the block is not found in the tier any more.
	EventRemoved
)

// String returns "lost", "stored" or "removed".
func (c Change) String() string {
	switch c {
	case EventLost:
		return "lost"
	case EventStored:
		return "stored"
	case EventRemoved:
		return "removed"
	}
	return "unknown"
}

// An Event is a change of a tier's contents by this process. The last event of a block in a tier
// gives its state there.
type Event struct {
	Change Change
	Tier   string    // Tier.Name; empty if Change is EventLost
	Key    block.Key // zero if Change is EventLost
}

// MaxEvents is the number of events that wait for a Watcher.
const MaxEvents = 1 << 16

// Events passes events from tiers to watchers. All methods are safe for concurrent use. Those of
// tiers do nothing on nil, do not block, and may be called with the tier's locks held.
type Events struct {
	watched  atomic.Bool
	lost     atomic.Int64
	mu       sync.Mutex
	watchers []*Watcher // guarded by mu
}

// Watcher receives events. Its methods are safe for concurrent use.
type Watcher struct {
	of   *Events
	wake chan struct{} // buffers one; notified of a new event

	queue []Event // guarded by of.mu
	taken int     // number of the first events of queue that Take has returned; guarded by of.mu
}

// Stored adds an event. Calls for one block of a tier are in the order of its changes.
func (e *Events) Stored(tier string, key block.Key) { e.add(Event{EventStored, tier, key}) }

// Removed adds an event, like Stored.
func (e *Events) Removed(tier string, key block.Key) { e.add(Event{EventRemoved, tier, key}) }

func (e *Events) add(event Event) {
	if e == nil || !e.watched.Load() {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, w := range e.watchers {
		w.add(event)
	}
}

// add queues an event. The caller holds of.mu. If too many events wait, they are dropped, because
// the watcher has to read the contents anyway.
func (w *Watcher) add(event Event) {
	if len(w.queue)-w.taken == MaxEvents {
		lost := int64(MaxEvents)
		if w.queue[w.taken].Change == EventLost {
			lost--
		}
		w.of.lost.Add(lost)
		w.queue, w.taken = append(w.queue[:0], Event{Change: EventLost}), 0
	}
	w.queue = append(w.queue, event)
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// Watch returns a Watcher of the events from now on. Its first event is EventLost. Close it.
func (e *Events) Watch() *Watcher {
	w := &Watcher{of: e, wake: make(chan struct{}, 1)}
	e.mu.Lock()
	defer e.mu.Unlock()
	w.add(Event{Change: EventLost})
	e.watchers = append(e.watchers, w)
	e.watched.Store(true)
	return w
}

// Take removes at most most events from the queue and returns them. It does not wait.
func (w *Watcher) Take(most int) []Event {
	w.of.mu.Lock()
	defer w.of.mu.Unlock()
	n := min(most, len(w.queue)-w.taken)
	taken := slices.Clone(w.queue[w.taken : w.taken+n])
	if w.taken += n; 2*w.taken >= len(w.queue) { // so each event moves once on average
		w.queue, w.taken = append(w.queue[:0], w.queue[w.taken:]...), 0
	}
	return taken
}

// Wait waits until there may be an event to take. It returns the cause of ctx when that ends.
func (w *Watcher) Wait(ctx context.Context) error {
	select {
	case <-w.wake:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// LostEvents returns the number of events that watchers have lost because too many were waiting.
func (e *Events) LostEvents() int64 { return e.lost.Load() }

// Close ends the events of w. A second Close has no effect.
func (w *Watcher) Close() {
	w.of.mu.Lock()
	defer w.of.mu.Unlock()
	w.of.watchers = slices.DeleteFunc(w.of.watchers, func(o *Watcher) bool { return o == w })
	w.of.watched.Store(len(w.of.watchers) > 0)
}

// Lister is a Tier that can list its blocks.
type Lister interface {
	// List calls yield for the key of each block that can be found, in any order, until yield returns
	// an error, which List returns. Blocks that are stored or removed meanwhile may be listed or
	// not. yield may call the tier.
	List(ctx context.Context, yield func(key block.Key) error) error
}
