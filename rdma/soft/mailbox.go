package soft

import (
	"context"
	"slices"
	"sync"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/rdma"
)

// mailbox delivers each element to one waiting caller, in order.
type mailbox[T comparable] struct {
	what   string
	ready  chan struct{} // capacity 1; has an element while the mailbox is not empty
	closed chan struct{}

	mu   sync.Mutex
	list []T
}

func newMailbox[T comparable](what string) *mailbox[T] {
	return &mailbox[T]{what: what, ready: make(chan struct{}, 1), closed: make(chan struct{})}
}

func (m *mailbox[T]) put(v T) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.list = append(m.list, v)
	m.token()
}

// putOnce adds v unless the mailbox already contains it.
func (m *mailbox[T]) putOnce(v T) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !slices.Contains(m.list, v) {
		m.list = append(m.list, v)
		m.token()
	}
}

// token signals that the mailbox is not empty. The caller holds mu.
func (m *mailbox[T]) token() {
	select {
	case m.ready <- struct{}{}:
	default:
	}
}

func (m *mailbox[T]) take() (v T, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.list) == 0 {
		return v, false
	}
	v = m.list[0]
	m.list = slices.Delete(m.list, 0, 1)
	if len(m.list) > 0 {
		m.token()
	}
	return v, true
}

// remove removes every v.
func (m *mailbox[T]) remove(v T) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.list = slices.DeleteFunc(m.list, func(w T) bool { return w == v })
}

// wait returns the next element, or an error if ctx ends or the mailbox is closed.
func (m *mailbox[T]) wait(ctx context.Context, call string) (v T, err error) {
	for {
		select {
		case <-m.ready:
			if v, ok := m.take(); ok {
				return v, nil
			}
		case <-m.closed:
			return v, &rdma.Error{Call: call, Text: "the " + m.what + " is closed", Kind: errdefs.ErrClosed}
		case <-ctx.Done():
			return v, context.Cause(ctx)
		}
	}
}

// close ends all waits.
func (m *mailbox[T]) close() { close(m.closed) }
