package plan

import "time"

// traffic is when the two directions of the bus are busy, as far as predicted, and whether what goes one way has met what goes
// the other: whoever starts first does not see what will come, and goes by how it was with the last batch.
type traffic struct {
	since, until [directions]time.Duration // the last time without a pause
	met          [directions]bool          // the last batch that ended met opposite ones for most of its time
	over, took   [directions]time.Duration // when it ended, and what it took
}

// opposite returns the direction that shares the bus with d, if there is one.
func opposite(d Direction) (Direction, bool) { return H2D + D2H - d, d <= D2H }

// opposed reports whether a batch in direction d that begins now meets opposite traffic: if there is some, or the last batch
// met some and is over for no longer than it took.
func (t *traffic) opposed(d Direction, now time.Duration) bool {
	o, ok := opposite(d)
	return ok && (t.until[o] > now || t.met[d] && now-t.over[d] < t.took[d])
}

// begins notes a batch in direction d that begins now.
func (t *traffic) begins(d Direction, now, until time.Duration) {
	if t.until[d] < now {
		t.since[d] = now
	}
	t.until[d] = max(t.until[d], until)
}

// ends notes that a batch in direction d ends now that took so long, and reports whether it met opposite traffic.
func (t *traffic) ends(d Direction, now, took time.Duration) bool {
	o, ok := opposite(d)
	if !ok {
		return false
	}
	both := min(now, t.until[o]) - max(now-took, t.since[o])
	t.met[d], t.over[d], t.took[d] = 2*both > took, now, took
	return t.met[d]
}
