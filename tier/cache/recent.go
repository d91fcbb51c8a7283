package cache

// recent is a map of the most recently added keys, up to a fixed number. It removes the oldest
// first.
type recent[K comparable, V any] struct {
	m    map[K]remembered[V]
	ring []K
	next uint64 // number of additions; the next key is stored in ring[next % len(ring)]
}

type remembered[V any] struct {
	value V
	at    uint64 // number of the addition
}

func newRecent[K comparable, V any](n int) *recent[K, V] {
	return &recent[K, V]{m: make(map[K]remembered[V], n), ring: make([]K, n)}
}

func (r *recent[K, V]) add(key K, value V) {
	n := uint64(len(r.ring))
	i := r.next % n
	// The entry of the old key may have been removed, or added again later at another place in the
	// ring.
	if old, ok := r.m[r.ring[i]]; ok && old.at+n == r.next {
		delete(r.m, r.ring[i])
	}
	r.ring[i] = key
	r.m[key] = remembered[V]{value, r.next}
	r.next++
}

func (r *recent[K, V]) get(key K) (V, bool) {
	v, ok := r.m[key]
	return v.value, ok
}

// forget removes key and reports whether it was in the map.
func (r *recent[K, V]) forget(key K) bool {
	if _, ok := r.m[key]; !ok {
		return false
	}
	delete(r.m, key)
	return true
}
