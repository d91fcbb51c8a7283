// Package calibrate measures a device's copy paths for package stream/copy/plan.
//
// It measures through streams that are forced onto one path each, so the times include the stream's
// own work. Every size is copied in batches of 1, 4, 16, ... copies by every path, with every
// number of thread blocks. This repeats for as long as time is left; the median of each counts. The
// paths take turns at each point, so that disturbances affect them alike. Blocks are scattered over
// a gigabyte of device memory and over host memory. Only staged copies use contiguous host memory.
// Anything that the device lacks is recorded and left out. NICs that copy beside the device's paths
// (Options.NIC) are measured with the same batches.
//
// A device that is in use is not measured. Different rates of the same large copy show other work
// on the link. A kernel that takes much longer than a copy engine for one block shows other work on
// the multiprocessors. The check is repeated afterwards: if the load has changed, Result.Loaded
// reports it, and the profile should not be stored.
//
// The package starts no goroutines.
package calibrate
