// Package describe says what is in a batch: its shape, for whoever chooses a path, and the runs, descriptors and sums that movers
// give to a device. It calls no device and holds no memory of one: who calls says where to write.
//
// A Cursor is how far a batch was described. One goroutine at a time uses it, and the types around it.
package describe
