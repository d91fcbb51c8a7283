// Package breaker implements a circuit breaker: it refuses calls to a failing peer, so that callers
// do not wait for it.
//
// A closed Breaker permits all calls. After several consecutive failures it opens and refuses calls
// for a delay that doubles with each failed recovery. After the delay it is half-open and permits a
// few probes. If they succeed, it closes; if one fails, it opens again.
//
// The result of a call counts only for the state that permitted it: a call that began before the
// breaker opened neither closes it nor opens it again. A Breaker starts no goroutine, and all
// methods are safe for concurrent use.
package breaker
