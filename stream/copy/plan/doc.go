// Package plan predicts how long a batch takes on each path of a copy stream, and chooses among them. It is pure: it
// reaches no device and starts no goroutine; package stream/copy asks it, package stream/copy/calibrate measures for it.
//
// # Model
//
// A Profile holds one Model for each path, number of thread blocks, direction, form and placement on the host side. A model is
// a table: what n copies of s bytes take when nothing runs before them, measured at a few sizes and counts, and taken to lie
// on straight lines between. That is exact for a cost a copy and a cost a byte, and it follows whatever else hardware does:
// a kernel's first copies, which cost nothing as many warps wait for their bytes at the same time; a driver that goes over
// to another engine at some size. Beyond the longest batch measured, each further copy costs what the last ones did.
//
// Behind other batches, Lead of that time passes while those still copy, a kernel's launch for instance; what is left is
// the marginal cost. While the opposite direction is busy, or was when the last batch went, each byte takes Duplex longer.
//
// Behind other batches a path that waits until they have ended, as Request.Alone says, hides nothing of its start.
//
// Copy engines and NICs are asked once a run of neighbouring extents, so n is the runs; kernels copy pieces. A staged copy
// gathers pieces and makes one engine copy a run of the host side while it gathers the next chunk: where it was measured
// with a contiguous host only, it takes as long as the slower of the two. Pieces of many sizes are taken for as many of the
// mean size. The planner knows no more than that, and has no thresholds.
//
// # Choosing
//
// Every candidate's cost is predicted, and the lowest taken; among those within the margin (2% by default), the one that takes
// the fewest thread blocks away from computing. The cost is time x (1 + weight x harm): harm is the share of its rate that work
// beside the copies loses while they go by that path, and the Policy has the weight, none where throughput or latency is the goal.
//
// # Learning
//
// Batches are alike that have the same direction and form, size and count within a factor of four, and meet the same
// situation: an idle stream or a backlog, a host side that is contiguous or not, the opposite direction idle or busy. For
// batches that are alike, Observe keeps for each path an average of the logarithm of actual over profiled time, which scales
// later predictions. One batch counts for half as much again as expected at most. Averages fade (Options.HalfLife), so that a
// path once seen slow is tried again. A path that was measured as slower than it is, and is not taken for that, is found out by
// the next calibration only.
//
// # Concurrency
//
// Profiles, requests and policies are values. A Planner and a Budget are safe for concurrent use. Choose allocates nothing,
// Observe once for each direction and situation.
package plan
