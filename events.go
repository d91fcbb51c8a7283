package kvlane

import (
	"context"
	"errors"
	"fmt"
	"iter"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/tier"
)

type (
	// Event is a change of the contents of a tier: see tier.Event.
	Event = tier.Event
	// EventWatcher receives events: see tier.Watcher.
	EventWatcher = tier.Watcher
)

// The kinds of events.
const (
	EventLost    = tier.EventLost
	EventStored  = tier.EventStored
	EventRemoved = tier.EventRemoved
)

// Events returns an iterator over the changes that this engine makes to the contents of its tiers,
// from the start of the loop on: blocks that are stored, and removed by eviction, collection,
// Delete or damage. Changes by other processes and evictions by block servers are not events. It
// ends when ctx ends; the caller closes the engine later.
//
// At most tier.MaxEvents wait for the loop. If there are more, they are dropped and counted
// (Engine.LostEvents), and an event EventLost replaces them. It is also the first event. After it
// the loop forgets its index, calls Engine.Blocks for each tier, and applies the further events.
// The last event of a block in a tier gives its state.
func (e *Engine) Events(ctx context.Context) iter.Seq[Event] {
	return func(yield func(Event) bool) {
		w := e.WatchEvents()
		defer w.Close()
		for w.Wait(ctx) == nil {
			for some := w.Take(eventsAtOnce); len(some) > 0; some = w.Take(eventsAtOnce) {
				for _, event := range some {
					if ctx.Err() != nil || !yield(event) {
						return
					}
				}
			}
		}
	}
}

const eventsAtOnce = 1024

// WatchEvents returns a watcher of the events that Events describes, from now on, for callers that
// do not wait. Close it.
func (e *Engine) WatchEvents() *EventWatcher { return e.events.Watch() }

// LostEvents returns the number of events that loops over Events have lost because too many were
// waiting.
func (e *Engine) LostEvents() int64 { return e.events.LostEvents() }

// Blocks returns an iterator over the keys of the blocks in a tier, in any order. The last element
// may have an error instead of a key: ErrNotFound if there is no such tier, and ErrNotSupported for
// tiers that do not list blocks, as block servers and buckets. Use Engine.Lookup for these. The tier
// "window" lists none. Blocks that are stored or removed meanwhile may be listed or not.
func (e *Engine) Blocks(ctx context.Context, name string) iter.Seq2[Key, error] {
	return func(yield func(Key, error) bool) {
		err := e.list(ctx, name, func(key Key) error {
			if !yield(key, nil) {
				return errEnough
			}
			return nil
		})
		if err != nil && !errors.Is(err, errEnough) {
			yield(Key{}, err)
		}
	}
}

var errEnough = errors.New("the loop has ended")

func (e *Engine) list(ctx context.Context, name string, yield func(Key) error) error {
	for _, t := range e.Tiers() {
		if t.Name() != name {
			continue
		}
		if l, ok := t.(tier.Lister); ok {
			return l.List(ctx, yield)
		}
		return fmt.Errorf("list the blocks of tier %s: %w", name, errdefs.ErrNotSupported)
	}
	return fmt.Errorf("list the blocks of tier %q, which the pipeline does not have: %w", name, errdefs.ErrNotFound)
}
