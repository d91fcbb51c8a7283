package server

import (
	"context"
	"sync"
)

// shares bounds an amount in all and for each tenant. With several tenants, each has at most three
// times as much as is free then. A tenant without any part gets one if it is free. All methods are
// safe for concurrent use.
type shares struct {
	limit   int64
	several bool // tenants; a single one may have all

	mu    sync.Mutex
	used  int64
	of    map[string]int64
	freed chan struct{} // closed when a part is released; nil if no caller waits
}

func newShares(limit int64, several bool) *shares {
	return &shares{limit: limit, several: several, of: make(map[string]int64)}
}

// tryTake takes n for a tenant. It reports whether that was possible.
func (s *shares) tryTake(tenant string, n int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.try(tenant, n)
}

// try implements tryTake. The caller holds mu.
func (s *shares) try(tenant string, n int64) bool {
	own, free := s.of[tenant], s.limit-s.used-n
	if free < 0 || s.several && own > 0 && own+n > 3*free {
		return false
	}
	s.used += n
	s.of[tenant] = own + n
	return true
}

// take takes n for a tenant. It waits until that is possible, or until ctx ends. It reports whether
// it has taken n.
func (s *shares) take(ctx context.Context, tenant string, n int64) bool {
	for {
		s.mu.Lock()
		if s.try(tenant, n) {
			s.mu.Unlock()
			return true
		}
		if s.freed == nil {
			s.freed = make(chan struct{})
		}
		freed := s.freed
		s.mu.Unlock()
		select {
		case <-freed:
		case <-ctx.Done():
			return false
		}
	}
}

// release returns n that a tenant has taken.
func (s *shares) release(tenant string, n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.used -= n
	if s.of[tenant] -= n; s.of[tenant] == 0 {
		delete(s.of, tenant)
	}
	if s.freed != nil {
		close(s.freed)
		s.freed = nil
	}
}
