// Package calibrate measures a device's copy paths for package stream/copy/plan.
//
// It measures through streams that are forced onto one path each, so that what is measured is what a batch will take: the
// stream's own work included. Every size is copied in batches of 1, 4, 16, ... copies by every path, with every number of
// thread blocks, and then all again for as long as time is left; the median of each counts. The paths take turns at each
// point, so that whatever disturbs the machine disturbs them alike. Blocks are scattered over a gigabyte of device memory
// and, but for staged copies, which are for hosts that lie contiguous, as much of the host's. What a device does not have is
// noted and left out. NICs that copy beside the device's paths (Options.NIC) are measured as those are, by the same batches.
//
// A device that others use is not measured. Large copies that go at different rates show others on the link, and a kernel
// that takes much longer than a copy engine for one block shows others on the multiprocessors. The same is looked at
// afterwards: where it has changed, the result says so, and should not be stored.
//
// Nothing here runs on goroutines of its own.
package calibrate
