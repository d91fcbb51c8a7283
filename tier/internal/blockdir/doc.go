// Package blockdir has the parts common to all directories of blocks: the marker with the formats,
// the lock, the quarantine, the usage record, and the reports of inspecting, verifying and
// repairing. Its functions are as safe for concurrent use as package dirfs.
package blockdir
