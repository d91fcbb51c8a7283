package file

import (
	"context"
	"fmt"
	"sync"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
)

// owners says, for the keys that are in use in this process, who pins them and whether somebody writes or removes their
// file. There is at most one such owner of a key at a time.
type owners struct {
	mu   sync.Mutex
	keys map[block.Key]use
}

type use struct {
	pins int
	work work
	done chan struct{} // closed when the work has ended; made by the first who waits for it
}

type work uint8

const (
	idle       work = iota
	writing         // the block may be there already, and be looked at
	publishing      // it gets its name, but may not be durable yet: it is not to be found
	removing
)

// put notes u, or forgets the key when nobody uses it. The caller holds mu.
func (o *owners) put(key block.Key, u use) {
	if u.pins == 0 && u.work == idle {
		delete(o.keys, key)
		return
	}
	o.keys[key] = u
}

// own makes the caller the owner of key, for w. It waits for another owner to end, until ctx or stop does.
func (o *owners) own(ctx context.Context, stop <-chan struct{}, key block.Key, w work) error {
	for {
		done := o.try(key, w)
		if done == nil {
			return nil
		}
		select {
		case <-done:
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-stop:
			return errdefs.ErrClosed
		}
	}
}

// try is own that returns a channel, closed when there may be no other owner any more, instead of waiting.
func (o *owners) try(key block.Key, w work) <-chan struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	u := o.keys[key]
	if u.work == idle {
		u.work = w
		o.put(key, u)
		return nil
	}
	if u.done == nil {
		u.done = make(chan struct{})
		o.put(key, u)
	}
	return u.done
}

// publish says that the key's owner, who writes, is about to give the file its name.
func (o *owners) publish(key block.Key) {
	o.mu.Lock()
	defer o.mu.Unlock()
	u := o.keys[key]
	u.work = publishing
	o.put(key, u)
}

// tryOwn makes the caller the owner of key, to remove it, unless it is pinned or owned.
func (o *owners) tryOwn(key block.Key) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	u := o.keys[key]
	if u.pins > 0 || u.work != idle {
		return false
	}
	u.work = removing
	o.put(key, u)
	return true
}

func (o *owners) disown(key block.Key) {
	o.mu.Lock()
	defer o.mu.Unlock()
	u := o.keys[key]
	if u.done != nil {
		close(u.done)
	}
	u.work, u.done = idle, nil
	o.put(key, u)
}

// pin keeps the key from being removed, unless somebody is removing it already, or it is not to be found yet.
func (o *owners) pin(key block.Key) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	u := o.keys[key]
	if u.work == removing || u.work == publishing {
		return false
	}
	u.pins++
	o.put(key, u)
	return true
}

// unpin returns whether there is a key among keys that nobody pins any more.
func (o *owners) unpin(keys []block.Key) (free bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, key := range keys {
		u := o.keys[key]
		if u.pins == 0 {
			panic(fmt.Sprintf("file: release of block %s, which is not retained", key))
		}
		u.pins--
		o.put(key, u)
		free = free || u.pins == 0
	}
	return free
}

func (o *owners) look(key block.Key) (pinned bool, w work) {
	o.mu.Lock()
	defer o.mu.Unlock()
	u := o.keys[key]
	return u.pins > 0, u.work
}
