package capi

import (
	"fmt"
	"maps"
	"sync"

	"github.com/kvlane/kvlane/errdefs"
)

// Handle identifies an object of a Library. Handles are never reused. The top byte is the kind of
// the object, so that the kind is known after the object was freed.
type Handle uint64

// kindShift is the position of the kind in a Handle.
const kindShift = 56

// kind is the kind of an object.
type kind uint8

const (
	engineKind kind = iota + 1
	cacheKind
	leaseKind
	taskKind
	memoryKind
	streamKind
	managerKind
	jobKind
)

var kindNames = [...]string{
	engineKind: "engine", cacheKind: "KV cache", leaseKind: "lease", taskKind: "task", memoryKind: "memory", streamKind: "stream",
	managerKind: "manager", jobKind: "job",
}

func (k kind) String() string { return kindNames[k] }

// ended returns the error for a call with a handle of kind k whose object has ended. It is the
// error that the Go methods return in this case.
func (k kind) ended() error {
	switch k {
	case leaseKind:
		return releasedError{}
	case taskKind, jobKind:
		return invalid("the %s was freed, or its owner was closed", k)
	case engineKind, cacheKind, memoryKind, streamKind, managerKind:
	}
	return fmt.Errorf("the %s is closed: %w", k, errdefs.ErrClosed)
}

// releasedError is the error for a released lease. It wraps errdefs.ErrExpired.
type releasedError struct{}

func (releasedError) Error() string { return "the lease was released" }

func (releasedError) Unwrap() error { return errdefs.ErrExpired }

// handles maps handles to objects.
type handles struct {
	mu   sync.RWMutex
	last Handle            // last assigned number, without the kind; guarded by mu
	all  map[Handle]object // guarded by mu
}

// object is an object that a handle identifies.
type object interface {
	kind() kind
	of() object // owner; when it ends, this object ends too
}

func (h *handles) add(o object) Handle {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.all == nil {
		h.all = make(map[Handle]object)
	}
	h.last++
	n := Handle(o.kind())<<kindShift | h.last
	h.all[n] = o
	return n
}

// remove removes a handle.
func (h *handles) remove(n Handle) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.all, n)
}

// allOf returns the objects of an engine.
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

// removeOf removes the handles of an engine or a manager and of all its objects.
func (h *handles) removeOf(e object) {
	h.mu.Lock()
	defer h.mu.Unlock()
	maps.DeleteFunc(h.all, func(_ Handle, o object) bool { return o.of() == e })
}

// find returns the object of a handle. If the object has ended, it returns the error of kind.ended.
func find[T object](h *handles, n Handle) (T, error) {
	h.mu.RLock()
	o, there := h.all[n]
	last := h.last
	h.mu.RUnlock()
	t, ok := o.(T)
	number := n & (1<<kindShift - 1)
	switch {
	case ok:
		return t, nil
	case there:
		return t, invalid("handle %#x is a %s, not a %s", n, o.kind(), t.kind())
	case n>>kindShift == Handle(t.kind()) && 0 < number && number <= last:
		return t, t.kind().ended()
	}
	return t, invalid("handle %#x is not a %s", n, t.kind())
}
