package capi

import (
	"maps"
	"sync"
)

// Handle names something of a Library, and nothing else ever.
type Handle uint64

// handles are the things that callers have handles of.
type handles struct {
	mu   sync.RWMutex
	last Handle            // guarded by mu
	all  map[Handle]object // guarded by mu
}

// object is what a handle may stand for.
type object interface {
	kind() string
	of() object // whose it is, with which it goes
}

func (h *handles) add(o object) Handle {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.all == nil {
		h.all = make(map[Handle]object)
	}
	h.last++
	h.all[h.last] = o
	return h.last
}

// remove forgets a handle.
func (h *handles) remove(n Handle) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.all, n)
}

// allOf returns what is an engine's.
func (h *handles) allOf(e object) []object {
	h.mu.RLock()
	defer h.mu.RUnlock()
	var out []object
	for _, o := range h.all {
		if o.of() == e {
			out = append(out, o)
		}
	}
	return out
}

// removeOf forgets an engine or a manager, and all that is its.
func (h *handles) removeOf(e object) {
	h.mu.Lock()
	defer h.mu.Unlock()
	maps.DeleteFunc(h.all, func(_ Handle, o object) bool { return o.of() == e })
}

// find returns what a handle stands for.
func find[T object](h *handles, n Handle) (T, error) {
	h.mu.RLock()
	o, there := h.all[n]
	h.mu.RUnlock()
	t, ok := o.(T)
	switch {
	case ok:
		return t, nil
	case there:
		return t, invalid("handle %d is of a %s, not of a %s", n, o.kind(), t.kind())
	}
	return t, invalid("handle %d is of no %s: it was freed, or never given", n, t.kind())
}
