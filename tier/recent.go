package tier

import (
	"sync"

	"github.com/kvlane/kvlane/block"
)

// Recent keeps a value for each of the most recently added blocks, up to a fixed number. Its
// methods are safe for concurrent use.
type Recent[V any] struct {
	mu   sync.Mutex
	most int
	ring []block.Key // up to most keys; then the oldest is overwritten
	next int
	of   map[block.Key]recentValue[V]
}

type recentValue[V any] struct {
	value V
	slot  int // index of the key's last addition in ring
}

// NewRecent returns an empty Recent for up to most blocks, at least 1.
func NewRecent[V any](most int) *Recent[V] {
	return &Recent[V]{most: most, of: make(map[block.Key]recentValue[V])}
}

// Add adds blocks with one value.
func (r *Recent[V]) Add(value V, keys ...block.Key) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, key := range keys {
		if len(r.ring) < r.most {
			r.ring = append(r.ring, key)
		} else {
			if old := r.ring[r.next]; r.of[old].slot == r.next {
				delete(r.of, old)
			}
			r.ring[r.next] = key
		}
		r.of[key] = recentValue[V]{value, r.next}
		r.next = (r.next + 1) % r.most
	}
}

// Get returns the value of a block, and false if the block is not kept.
func (r *Recent[V]) Get(key block.Key) (V, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	v, ok := r.of[key]
	return v.value, ok
}
