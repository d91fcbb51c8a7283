// Package usage tracks how a durable tier is used: OpCounter counts operations, KeyLocks locks and
// pins keys, and Pause suspends writes. All types are safe for concurrent use.
package usage
