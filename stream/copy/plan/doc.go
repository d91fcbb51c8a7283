// Package plan predicts how long a batch takes on each path of a copy stream, and chooses among them. It is pure: it
// reaches no device and starts no goroutine; package stream/copy asks it, package stream/copy/calibrate measures for it.
//
// # Model
//
// A Profile holds one Model for each path, number of thread blocks, direction, form and layout of the host side. A model is
// a table: what n copies of s bytes take when nothing runs before them, measured at a few sizes and counts, and taken to lie
// on straight lines between. That is exact for a cost a copy and a cost a byte, and it follows whatever else hardware does:
// a kernel's first copies, which cost nothing as many warps wait for their bytes at the same time; a driver that goes over
// to another engine at some size. Beyond the longest batch measured, each further copy costs what the last ones did.
//
// Behind other batches, Lead of that time passes while those still copy, a kernel's launch for instance; what is left is
// the marginal cost. While the opposite direction is busy, or was when the last batch went, each byte takes Duplex longer.
// A resident kernel that has to be started takes Start more, which is shared among as many batches as have just come one
// soon after another.
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
// Every candidate's cost is predicted, and the lowest taken; among those within the margin (2% by default, twice that for
// paths that need no multiprocessor while the fastest was not seen enough lately), the one that takes the fewest thread
// blocks away from computing, and among equals the one that was taken before. What counts as cost depends on the Policy.
//
// # Learning
//
// Batches are alike that have the same direction and form, size and count within a factor of four, and meet the same
// situation: an idle stream or a backlog, a host side that is contiguous or not, the opposite direction idle or busy. For
// batches that are alike, Observe keeps for each path an average of the logarithm of actual over profiled time, which
// scales later predictions. One wild batch moves it little; three surprises in a row, of 2 ms at least, make it begin anew,
// so that a link that halves is known within a dozen batches. Where every path that was seen lately is slower than it
// should be, as when somebody else uses the link, those not seen are taken to be as slow: the ratios stay, and so do the
// choices.
//
// A prediction that is too high would never be corrected, as the path is never taken. So now and then a path is tried that
// may turn out to be faster, the less it was seen the more hope there is for it. What that costs is bounded: 1% of the time
// of batches that are alike (Options.Probe), and nothing is tried beside opposite traffic. And averages fade
// (Options.HalfLife), so that a path once seen slow is tried again.
//
// Batches of a stream that is idle, and that are the same as one before whose path is known well, take its choice for some
// times: choosing and observing take a good part of a microsecond, and a block or two not much more than five.
//
// # Concurrency
//
// Profiles, requests and policies are values. A Planner and a Budget are safe for concurrent use. Choose allocates nothing,
// Observe once for each direction and situation.
package plan
