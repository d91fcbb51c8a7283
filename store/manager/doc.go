// Package manager is an index of blocks that other processes hold, for engines whose scheduler and
// workers are separate processes. The scheduler has the Manager, which needs no device and copies
// no bytes. Each worker has a store with the blocks of its rank. The engine sends the decisions of
// the Manager to the workers, and their results back.
//
// A block is named by a hash, which the engine defines, and a page group. It is present when every
// worker has its part of it. The Manager tracks which blocks the workers' pools hold, and decides
// which blocks are evicted. It opens the workers' file tiers for reading, so that it finds blocks
// of earlier workers.
//
// A Job is an operation of all workers. Load pins present blocks, in pools or in files, and Store
// makes space for new ones. The workers drop the blocks of Job.Evicted before they start. The
// engine runs jobs in the order of their creation. Job.End reports the result; the Manager forgets
// blocks that could not be stored or were missing or corrupt.
//
// All methods are safe for concurrent use. They wait only for lookups of files. One mutex guards
// all other state.
package manager
