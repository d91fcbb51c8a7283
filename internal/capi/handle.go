package capi

import (
	"fmt"
	"maps"
	"sync"

	"github.com/kvlane/kvlane/errdefs"
)

// Handle names an object of a Library. It is never used for another object. Its top byte is the
// kind of the object, so that the kind of a freed object is known.
type Handle uint64

// kindShift is the place of the kind in a Handle.
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

// ended returns the error of a call that names an object of that kind after its end. It is the
// error that Go's methods return.
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

// releasedError is the ErrExpired of a lease that was released.
type releasedError struct{}

func (releasedError) Error() string { return "the lease was released" }

func (releasedError) Unwrap() error { return errdefs.ErrExpired }

// handles maps handles to objects.
type handles struct {
	mu   sync.RWMutex
	last Handle            // of all kinds, without the kind; guarded by mu
	all  map[Handle]object // guarded by mu
}

// object is an object behind a handle.
type object interface {
	kind() kind
	of() object // the owner, whose end ends the object
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

// remove forgets a handle.
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

// removeOf forgets an engine or a manager, and its objects.
func (h *handles) removeOf(e object) {
	h.mu.Lock()
	defer h.mu.Unlock()
	maps.DeleteFunc(h.all, func(_ Handle, o object) bool { return o.of() == e })
}

// find returns the object of a handle. If the object has ended, the error is that of kind.ended.
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
