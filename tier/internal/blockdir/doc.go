// Package blockdir has the common parts of all directories of blocks: the marker with the formats,
// the lock, the quarantine, the usage record, and the reports of inspecting, verifying and
// repairing. Its functions are safe for concurrent use if the dirfs.Dir is.
package blockdir
