// Package share lets processes of one host use each other's memory: memory of GPUs, over NVLink or
// PCIe, and host memory.
//
// A Server exports Regions. It gets a handle of a region's allocation from the device. It sends the
// handle to a process that connects to its Unix socket, belongs to an allowed user and knows the
// export's identity of 128 random bits. The Descriptor of an export is public: it has no handle or
// file descriptor and gives no access. An Importer takes a Descriptor, maps the allocation for its
// own device, and returns a Region. Streams copy from and to it as between GPUs of one process.
//
// The connection of an import shows whether the memory is still exported. The kernel ends it when
// the exporter withdraws the memory, stops or dies. The mapping itself remains; the Region is lost
// then (mem.Origin). Using it fails with ErrLost at once, and a stream reports a copy as successful
// only if the connection was open after the copy had ended. Withdrawing waits until the importers
// confirm that they no longer touch the memory.
//
// Only a test shows which type of handle works on a machine. Probe tests each type, also between
// two processes, and keeps the reasons of failures. An Allocator allocates memory with the best
// type that works.
//
// Servers, Exports, Importers and Imports are safe for concurrent use.
package share
