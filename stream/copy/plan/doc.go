// Package plan predicts the duration of a batch on each path of a copy stream, and chooses a path.
// It accesses no device and starts no goroutine. Package stream/copy uses it to choose, and package
// stream/copy/calibrate supplies measurements.
//
// # Model
//
// A Profile has one Model for each path, number of thread blocks, direction and host side. A model
// is a table of measured times by size and count, interpolated linearly. It is exact for a cost of
// each copy and of each byte. It also represents a kernel whose first copies add no time, and a
// driver that changes engines at some size. Beyond the longest measured batch, each copy costs as
// much as the last ones.
//
// The part Model.Lead of a batch's time overlaps earlier batches. The rest is its marginal cost. A
// path in Request.Alone starts only after they end, without overlap. While the opposite direction
// is busy, or was during the last batch, each byte takes Model.Duplex longer.
//
// Copy engines and NICs copy each run of adjacent extents at once, so their count is Request.Runs.
// Kernels copy pieces. Staged copies gather pieces and copy each run of the host side by copy
// engine: the slower of the two counts. Pieces of different sizes count as pieces of the mean size.
//
// # Choosing
//
// The planner predicts the cost of every candidate and selects the lowest. Among candidates within
// Options.Margin it selects the one with the fewest thread blocks. The cost is time x (1 + weight x
// interference). Interference is the share of its rate that concurrent work loses, and the Policy
// determines the weight: 0 for throughput and latency.
//
// # Learning
//
// Observe keeps one correction for each path in each class of batches: by direction, three ranges
// of bytes, and whether the opposite direction is busy. A correction is a decayed average of
// log(actual / profiled time). It fades (Options.HalfLife), so that a path that was slow is tried
// again. A path that calibration measured as too slow is not chosen until the next calibration.
//
// # Concurrency
//
// Profiles, requests and policies are values. A Planner and a Budget are safe for concurrent use.
// Choose and Observe do not allocate.
package plan
