package plan

import "time"

// traffic records the predicted times when the two directions of the bus are busy, and whether
// batches overlapped opposite traffic. The later traffic during a batch is unknown when it starts,
// so it is assumed to be that of the last batch.
type traffic struct {
	since, until       [directions]time.Duration // start and end of the latest busy period
	wasOpposed         [directions]bool          // the last batch that ended mostly overlapped opposite traffic
	over, lastDuration [directions]time.Duration // end and duration of that batch
}

// opposite returns the direction that shares the bus with d, if any.
func opposite(d Direction) (Direction, bool) { return H2D + D2H - d, d <= D2H }

// opposed reports whether a batch in direction d that begins now is expected to overlap opposite
// traffic: the opposite direction is busy, or the last batch overlapped such traffic and ended
// recently, within its own duration.
func (t *traffic) opposed(d Direction, now time.Duration) bool {
	o, ok := opposite(d)
	return ok && (t.until[o] > now || t.wasOpposed[d] && now-t.over[d] < t.lastDuration[d])
}

// begins records a batch in direction d that is predicted to run from now to until.
func (t *traffic) begins(d Direction, now, until time.Duration) {
	if t.until[d] < now {
		t.since[d] = now
	}
	t.until[d] = max(t.until[d], until)
}

// ends records that a batch in direction d has ended now and took the given time. It reports
// whether the batch mostly overlapped opposite traffic.
func (t *traffic) ends(d Direction, now, took time.Duration) bool {
	o, ok := opposite(d)
	if !ok {
		return false
	}
	both := min(now, t.until[o]) - max(now-took, t.since[o])
	t.wasOpposed[d], t.over[d], t.lastDuration[d] = 2*both > took, now, took
	return t.wasOpposed[d]
}
