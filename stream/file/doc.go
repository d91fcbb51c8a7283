// Package file is the unordered stream between files and memory: of the host, and of a device. A batch's copies have a file on
// exactly one side.
//
// # Life of a batch
//
// Submit checks the batch, takes a place (Options.Depth) and starts its goroutine. That waits for the batch's dependencies, on
// the host, and then cuts the batch in parts. What neighbours in a file is one transfer, as long as it may be.
//
//   - Memory of the host that is contiguous is read into and written from where it lies.
//   - What is scattered, and what is a device's, goes through chunks of pinned memory: transfers fill a chunk, and one batch of
//     the stream of Options.Copy takes it to where its pieces belong; writes the other way round. While one chunk is copied the
//     next is read.
//   - By cuFile (Options.Storage) a device's memory is read into and written from with no chunk.
//
// A transfer is one range of a file and one extent of memory. A queue moves it, by one of the paths posix, uring and cufile;
// which one, the profile says (Measure) or a plain default. Each queue has at most so many under way, over
// all batches, and as many again that wait to be next.
//
// # Direct and buffered
//
// A file that is known by its descriptor is opened a second time with O_DIRECT. What is aligned to Align goes by that, past
// the page cache: reads of chunks are widened until they are, the ends of other reads go buffered, and a batch's writes to a
// file are direct if all of them are aligned. The kernel keeps both views of a page the same as long as no page is written by
// both at once, which is why a batch writes a file one way only. Reads try the page cache first where tries have succeeded, several
// small ones in a row by one worker, and every 16th time where they have not. A file system that refuses O_DIRECT is used buffered,
// as is a file that cannot be opened with it for another reason; completions say which, and Stats counts it.
//
// # Ends
//
// A ticket resolves when none of its transfers is unfinished and no batch of the inner stream either. A failure is its batch's
// alone. A path that a file system has refused is not taken there again, unless it is required (Direct): Stats counts it, and the
// next completion says why.
//
// When a queue of the device breaks that has transfers of cuFile, nothing tells what it still touches before it is idle. If that
// takes too long, its transfers are in quarantine (Stats.Quarantined): their tickets stay unresolved until Close has seen it idle. So
// are those of an io_uring that cannot be waited for, until they are found to have ended.
package file
