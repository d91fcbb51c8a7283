// Package calibrate measures a device's copy paths for package stream/copy/plan.
//
// It measures through streams that are forced onto one path each, so that the times include the
// stream's own work. Batches of 1, 4, 16, ... copies of every size are copied by every path, with
// every number of thread blocks. This is repeated until the time budget is used; the medians are
// used. The paths alternate at each point, so that disturbances affect them equally. Blocks are
// scattered over a gigabyte of device memory and over host memory. Only staged copies use
// contiguous host memory. Paths that the device does not support are recorded and left out. NICs
// that copy in addition to the device's paths (Options.NIC) are measured with the same batches.
//
// A device that is in use is not measured. Different rates of the same large copy indicate other
// work on the link. A kernel that takes much longer than a copy engine for one block indicates
// other work on the multiprocessors. The check is repeated afterwards: if the load has changed,
// Result.Loaded describes it, and the profile should not be stored.
//
// The package starts no goroutines.
package calibrate
