package index

// finish refuses new loads and releases the lease's own use of the pins. It reports whether this is
// the first call.
func (l *Lease) finish(released bool) bool {
	l.mu.Lock()
	first := !l.ended
	if first {
		l.ended, l.released = true, released
	}
	l.mu.Unlock()
	if first {
		l.End()
	}
	return first
}

// End undoes one Begin that returned nil.
func (l *Lease) End() {
	l.mu.Lock()
	l.uses--
	last := l.uses == 0
	l.mu.Unlock()
	if last {
		l.drop()
	}
}

func (l *Lease) drop() {
	from := 0
	for _, r := range l.runs {
		l.x.c.Tiers[r.tier].Release(l.keys[from:r.end])
		from = r.end
	}
}
