// Package manager keeps the index of blocks that other processes hold, for engines whose scheduler and workers are processes of
// their own. The scheduler has the Manager, which needs no device and sees no byte; each worker has a store of its own rank's blocks. What
// the Manager has decided travels to the workers by the engine's own means, and what became of it travels back.
//
// The model. A block has a hash, which the engine gave it, and a page group. It is there when every worker has its part of it. The
// Manager knows the workers' pools by their number of blocks alone, and which blocks are in them; it says what makes room for
// what. It also asks the workers' file tiers, which it opens itself, for reading, so that blocks outlive the workers.
//
// A Job is what workers are asked to do together: Load pins blocks that are there, in pools or in files, and Store makes room for
// new ones. Job.Evicted are blocks that the workers drop before they begin; the engine carries jobs out in the order in
// which they were made. Job.End says how it went: blocks that could not be stored, or were found missing or corrupt, are forgotten.
//
// All methods are safe for concurrent use. None waits for anything but files being looked up, and one mutex guards all but that.
package manager
