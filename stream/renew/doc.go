// Package renew replaces streams that break. A renew.Stream submits batches to a stream that it
// opens on first use. When that stream breaks, it opens another one, and closes the broken one in
// the background.
//
// # Concurrency
//
// All methods are safe for concurrent use, except that Submit must not run during Close. Each
// Stream has one goroutine, which ends with Close, and another one for each broken stream until
// that is closed.
package renew
