// Package metadata keeps small values under names in a store that several processes share. Package
// transfer stores the locations of segments there. A value has a lease, so that the values of a
// dead process disappear.
//
// A Server keeps the values in memory and serves them over HTTP: GET, PUT and DELETE of
// /metadata?key=KEY, with status 200 or 404. A Client is a client of that server and of others with
// the same interface. A value without a lease stays until it is deleted.
//
// Members is the list of servers that share work, with weights. StaticMembers never change.
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
	// Put sets the value of key and replaces an earlier one. The value expires after ttl; zero:
	// never.
	Put(ctx context.Context, key string, value []byte, ttl time.Duration) error
	// Get returns the value. It returns ErrNotFound if there is none or it has expired.
	Get(ctx context.Context, key string) ([]byte, error)
	// Delete removes the value, if there is one.
	Delete(ctx context.Context, key string) error
}
