// Package breaker refuses calls to a failing peer at once, so that callers need not wait for it.
//
// A closed Breaker permits all calls. After a number of failures in a row it opens and refuses
// calls for a time, which doubles with each failed recovery. Then it is half-open and permits a few
// probes. If they succeed it closes, and if one fails it opens again.
//
// The result of a call counts only for the state that permitted it: a call that began before the
// breaker opened neither closes it nor opens it again. A Breaker starts no goroutine, and all
// methods are safe for concurrent use.
package breaker
