package soft

// PlainRuns returns how many runs of requests of t were started as those before them, and are completed at once.
func (t *Transfer) PlainRuns() (n int) {
	for i := range t.items {
		if t.items[i].plain {
			n++
		}
	}
	return n
}
