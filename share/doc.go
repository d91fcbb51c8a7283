// Package share gives processes of one host each other's memory: that of GPUs, over NVLink or PCIe, and that of the host.
//
// A Server exports Regions: it asks the device for a handle of the allocation behind one, and gives that to whoever connects to its
// Unix socket, is of an allowed user and names the export's identity, 128 random bits. What is published of an export is its
// Descriptor: no handle, no descriptor of a file, nothing that gives access by itself. An Importer takes a Descriptor, maps the
// allocation for its own device alone, and hands out a Region, which streams copy from and to as they do between GPUs of one process.
//
// The connection by which memory was imported is what says that it is still exported: it ends when the exporter withdraws it, stops or
// dies, and the kernel tells. Mappings outlive all that, so a Region is then lost (mem.Origin): using it is ErrLost at once, and a
// stream reports a copy good only if it found the connection standing after the copy had ended. Who withdraws waits until importers say
// that nothing of theirs touches the memory any more.
//
// Which sort of handle works on a machine only trying tells: Probe tries each, also between two processes, keeps why one does not,
// and an Allocator makes memory by the best that does.
//
// Servers, Exports, Importers and Imports are safe for concurrent use.
package share
