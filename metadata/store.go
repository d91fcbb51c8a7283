// Package metadata provides a key-value store for small values that several processes share.
// Package transfer stores the locations of segments there. A value may have a lease: the values of
// a dead process expire.
//
// A Server keeps the values in memory and serves them over HTTP: GET, PUT and DELETE of
// /metadata?key=KEY, with status 200 or 404. A Client works with this server and with other servers
// of the same interface. A value without a lease stays until it is deleted.
//
// Members is the list of servers that share a load, with weights. StaticMembers never change.
// PolledMembers are read again at intervals, from a file or from DNS. Package metadata/etcd has
// those that servers register in etcd. OpenMembers opens the list that a text names.
//
// All types are safe for concurrent use.
package metadata

import (
	"context"
	"time"
)

// Limits of a Server.
const (
	MaxKeyBytes   = 1 << 10
	MaxValueBytes = 1 << 20
)

// Store keeps values by key.
type Store interface {
	// Put sets the value of key. The value expires after ttl; with 0 it never expires.
	Put(ctx context.Context, key string, value []byte, ttl time.Duration) error
	// Get returns the value. It returns ErrNotFound if the key has no value or the value has
	// expired.
	Get(ctx context.Context, key string) ([]byte, error)
	// Delete removes the value. It returns nil if the key has no value.
	Delete(ctx context.Context, key string) error
}
