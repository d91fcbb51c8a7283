// Package file is the unordered stream between files and memory of the host or of a device. Each
// copy of a batch has a file on exactly one side.
//
// # Life of a batch
//
// Submit checks the batch, takes a slot (Options.Depth) and starts the batch's goroutine. The
// goroutine waits on the host for the batch's dependencies, and then splits the batch into parts.
// Ranges that are adjacent in a file become one transfer, up to the maximum length.
//
//   - Contiguous host memory is read and written in place.
//   - Scattered memory and device memory use chunks of pinned memory. For reads, transfers fill a
//     chunk, and one batch of the stream Options.Copy copies it to its pieces. Writes do the
//     reverse. One chunk is copied while the next is read.
//   - With cuFile (CuFileOptions.Storage) device memory is read and written without a chunk.
//
// A transfer is one range of a file and one extent of memory. A queue moves it by one of the paths
// posix, uring and cufile. The profile (see Measure) or a default selects the path. Each queue has
// a limit of transfers in flight, over all batches, and as many more may wait.
//
// # Direct and buffered
//
// A file with a descriptor is opened a second time with O_DIRECT. Aligned ranges (Align) use it and
// bypass the page cache. Reads into chunks are extended to be aligned. The unaligned ends of other
// reads are buffered. The writes of a batch to a file are direct if all of them are aligned. The
// kernel keeps both views of a page consistent unless both write it at once, so a batch writes a
// file in only one of the two ways.
//
// Reads try the page cache first while that succeeds. One worker tries several small ones in a row.
// While it fails, only every 16th read tries. A file is moved buffered if its file system refuses
// O_DIRECT, or if it cannot be opened with O_DIRECT for another reason. Completions have the
// reason, and Stats counts it.
//
// # Failures
//
// A ticket resolves when no transfer and no batch of the inner stream is unfinished. A failure
// affects only its batch. A path that a file system has refused is not used there again, unless it
// is required (Direct). Stats counts it, and the next completion has the reason.
//
// If a device queue with transfers of cuFile breaks, it may access their memory until it is idle.
// If that takes too long, its transfers are quarantined (Stats.Quarantined): their tickets stay
// unresolved until Close finds the queue idle. Transfers of an io_uring whose end cannot be awaited
// are quarantined until they are found to have ended.
package file
