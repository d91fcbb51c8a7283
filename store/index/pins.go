package index

// finish refuses new loads and ends the lease's own hold on the pins. It reports whether this is
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

// End ends a load that Begin has started.
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
