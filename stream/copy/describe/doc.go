// Package describe computes the shape of a batch, for the choice of a path, and the runs,
// descriptors and sums that movers pass to a device. It calls no device and allocates no device
// memory: the caller supplies the memory for descriptors.
//
// A Cursor is the position up to which a batch was described. Cursors and the related types are not
// safe for concurrent use.
package describe
