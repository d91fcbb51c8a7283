package file

import (
	"math/rand/v2"
	"time"
)

// SetClock sets the clock of the budget.
func (o *Options) SetClock(now func() time.Time) { o.clock = now }

// Hurry limits the run to the minimum number of rounds.
func (o *Options) Hurry() { o.rounds = minRounds + 1 }

// Draws returns the function that draws the batches of a place.
func Draws(o Options, p Place) func() []int64 {
	r := &run{o: &o, rng: rand.New(rand.NewPCG(o.Seed, 0))}
	return r.offsets(p)
}
