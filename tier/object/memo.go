package object

import (
	"sync"
	"time"

	"github.com/kvlane/kvlane/block"
)

const (
	// missTime is the time for which a miss is remembered.
	missTime = time.Second
	// damageTime is the time for which a damaged object is a miss.
	damageTime = time.Minute
	// maxRemembered bounds the misses, and the damaged objects.
	maxRemembered = 1 << 16
)

// version identifies the content of an object.
type version struct {
	etag     string
	modified int64 // Unix seconds
}

// memo remembers misses and damaged objects for a bounded time. It is safe for concurrent use.
type memo struct {
	mu     sync.Mutex
	writes uint64 // number of forget calls
	misses map[block.Key]time.Time
	damage map[block.Key]damaged
}

type damaged struct {
	version
	until time.Time
}

// missed reports whether a block was missing within missTime.
func (m *memo) missed(key block.Key) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	until, ok := m.misses[key]
	if ok && time.Now().After(until) {
		delete(m.misses, key)
		ok = false
	}
	return ok
}

// begin returns a value for addMisses. Call it before the request that finds the misses.
func (m *memo) begin() uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.writes
}

// addMisses remembers misses, unless a block was written since begin.
func (m *memo) addMisses(since uint64, keys []block.Key) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.writes != since || len(keys) == 0 {
		return
	}
	if m.misses == nil || len(m.misses)+len(keys) > maxRemembered {
		m.misses = make(map[block.Key]time.Time)
	}
	until := time.Now().Add(missTime)
	for _, key := range keys {
		m.misses[key] = until
	}
}

// forget forgets all about a block that was written.
func (m *memo) forget(key block.Key) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.writes++
	delete(m.misses, key)
	delete(m.damage, key)
}

// addDamage remembers a damaged object. It reports whether it was not known yet.
func (m *memo) addDamage(key block.Key, v version) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.damage == nil || len(m.damage) >= maxRemembered {
		m.damage = make(map[block.Key]damaged)
	}
	old, ok := m.damage[key]
	m.damage[key] = damaged{v, time.Now().Add(damageTime)}
	return !ok || old.version != v
}

// damagedVersion returns the damaged object of a block, and false if it is not known.
func (m *memo) damagedVersion(key block.Key) (version, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	d, ok := m.damage[key]
	if ok && time.Now().After(d.until) {
		delete(m.damage, key)
		ok = false
	}
	return d.version, ok
}

// isDamaged reports whether v is the damaged object of a block.
func (m *memo) isDamaged(key block.Key, v version) bool {
	d, ok := m.damagedVersion(key)
	return ok && d == v
}
