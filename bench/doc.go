// Package bench measures how fast a device's copy paths move scattered blocks, as the blocks of a paged KV cache lie,
// beside what one large copy reaches in the same run.
//
// A point is a block size, a path, a direction and a layout of the host side; the device side is always scattered: a
// seeded random permutation over a pool, a new one for every repetition. Bytes are checked after every repetition of
// a point, outside the time measured, against a pattern that differs at every position: a run that moved wrong bytes
// fails and reports no figures.
//
// Run measures one device, alone, from one goroutine. On the simulated device the figures describe the simulation, and
// the report says so.
package bench
