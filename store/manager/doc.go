// Package manager is the index of blocks that other processes hold, for engines whose scheduler and
// workers are separate processes. The scheduler has the Manager, which needs no device and copies
// no bytes. Each worker has a store with the blocks of its rank. The engine sends the decisions of
// the Manager to the workers, and their results back.
//
// A block has a hash, which the engine defines, and a page group. It is present when every worker
// has its part of it. The Manager knows the pools of the workers by their number of blocks, and the
// blocks in them. It decides which blocks are evicted. It opens the workers' file tiers for
// reading, so that blocks outlive the workers.
//
// A Job is work of all workers: Load pins present blocks, in pools or in files, and Store makes
// space for new ones. The workers drop the blocks of Job.Evicted before they start. The engine runs
// jobs in the order of their creation. Job.End reports the result: blocks that could not be stored,
// or were missing or corrupt, are forgotten.
//
// All methods are safe for concurrent use. They wait for lookups of files only. One mutex guards
// all other state.
package manager
