package file

import (
	"math/rand/v2"
	"time"
)

// SetClock makes the budget be counted by now.
func (o *Options) SetClock(now func() time.Time) { o.clock = now }

// Hurry makes no more rounds than there must be.
func (o *Options) Hurry() { o.rounds = minRounds + 1 }

// Draws returns what draws the batches of a place.
func Draws(o Options, p Place) func() []int64 {
	r := &run{o: &o, rng: rand.New(rand.NewPCG(o.Seed, 0))}
	return r.offsets(p)
}
