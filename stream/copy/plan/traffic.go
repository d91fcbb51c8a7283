package plan

import "time"

// traffic records when the two directions of the bus are busy, as predicted, and whether batches
// met opposite traffic. A batch that starts first cannot know later traffic, so it assumes that of
// the last batch.
type traffic struct {
	since, until       [directions]time.Duration // last period without a pause
	wasOpposed         [directions]bool          // the last batch that ended mostly met opposite traffic
	over, lastDuration [directions]time.Duration // end and duration of that batch
}

// opposite returns the direction that shares the bus with d, if there is one.
func opposite(d Direction) (Direction, bool) { return H2D + D2H - d, d <= D2H }

// opposed reports whether a batch in direction d that begins now meets opposite traffic. It does if
// the opposite direction is busy, or if the last batch met traffic and ended no longer ago than it
// took.
func (t *traffic) opposed(d Direction, now time.Duration) bool {
	o, ok := opposite(d)
	return ok && (t.until[o] > now || t.wasOpposed[d] && now-t.over[d] < t.lastDuration[d])
}

// begins records a batch in direction d from now to until.
func (t *traffic) begins(d Direction, now, until time.Duration) {
	if t.until[d] < now {
		t.since[d] = now
	}
	t.until[d] = max(t.until[d], until)
}

// ends records that a batch in direction d ends now and took the given time. It reports whether the
// batch met opposite traffic.
func (t *traffic) ends(d Direction, now, took time.Duration) bool {
	o, ok := opposite(d)
	if !ok {
		return false
	}
	both := min(now, t.until[o]) - max(now-took, t.since[o])
	t.wasOpposed[d], t.over[d], t.lastDuration[d] = 2*both > took, now, took
	return t.wasOpposed[d]
}
