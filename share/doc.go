// Package share shares memory between processes of one host: GPU memory over NVLink or PCIe, and
// host memory.
//
// A Server exports Regions. The device provides a handle for a region's allocation. The server
// sends the handle over its Unix socket to processes of allowed users that send the export's
// identity, which has 128 random bits. The Descriptor of an export contains no handle. An Importer
// takes a Descriptor, maps the allocation for its own device, and returns a Region. Streams copy
// from and to this Region as between GPUs of one process.
//
// Every import has a connection to the exporter. It ends when the exporter withdraws the memory,
// stops or dies. Then the Region is lost (mem.Origin), although it is still mapped. Uses of a lost
// Region fail with ErrLost, and a stream reports a copy as successful only if the connection was
// still open after the copy. Withdrawing an export waits until the importers confirm that they no
// longer access the memory.
//
// Which types of handle work on a machine can only be found by testing. Probe tests each type, also
// between two processes, and returns the reasons of failures. An Allocator allocates memory for the
// best type that works.
//
// Servers, Exports, Importers and Imports are safe for concurrent use.
package share
