// Package placement chooses the block servers of runs of blocks. It has no I/O and no clock: the
// same code places blocks in package tier/remote and in the simulation of many servers.
//
// A View is the servers at one time. Weighted rendezvous hashing of a run's anchor orders them. The
// first is the home of the run, which gets its new blocks. The first k have replicas of a hot run.
//
//   - The weight of a server that joins grows in steps, so that few runs move at a time.
//   - A server that drains is the home of no run.
//   - While a server drains, and for some time after one joined, a run may have a previous home,
//     which may have its blocks.
//
// Views of equal servers are equal in every process. They are not in clients that see a change at
// different times; these miss blocks meanwhile.
package placement
