package cache

// recent remembers the values of the last keys added, up to a fixed number of them; the oldest is forgotten first.
type recent[K comparable, V any] struct {
	m    map[K]remembered[V]
	ring []K
	next uint64 // additions so far; the next one goes to ring[next % len(ring)]
}

type remembered[V any] struct {
	value V
	at    uint64 // the addition that put it here
}

func newRecent[K comparable, V any](n int) *recent[K, V] {
	return &recent[K, V]{m: make(map[K]remembered[V], n), ring: make([]K, n)}
}

func (r *recent[K, V]) add(key K, value V) {
	n := uint64(len(r.ring))
	i := r.next % n
	// The key in this place may have been forgotten, or added again later: then it is not this place's to remove.
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

// forget removes key and says whether it was there.
func (r *recent[K, V]) forget(key K) bool {
	if _, ok := r.m[key]; !ok {
		return false
	}
	delete(r.m, key)
	return true
}
