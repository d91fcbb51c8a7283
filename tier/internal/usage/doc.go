// Package usage counts who uses a durable tier and its blocks: a Gate the operations under way, Owners who pins a key and who writes
// or removes its block, a Pause why nobody writes for now. All are safe for concurrent use.
package usage
