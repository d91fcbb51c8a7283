package file

import "time"

// SetClock makes the budget be counted by now.
func (o *Options) SetClock(now func() time.Time) { o.clock = now }

// Hurry makes no more rounds than there must be.
func (o *Options) Hurry() { o.rounds = minRounds + 1 }
