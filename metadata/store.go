// Package metadata says where segments are: small values under names, in a store that several processes reach. What is put there has
// a lease, so that what a dead process has put vanishes.
//
// A Server keeps them in memory, over HTTP; a Client is its client, and of others that speak the same: GET, PUT and DELETE of
// /metadata?key=KEY, 200 or 404. A value without a lease stays, as those who know of none expect.
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

// Store has values by name.
type Store interface {
	// Put sets the value of key, in place of another one, for as long as ttl says; zero: for good.
	Put(ctx context.Context, key string, value []byte, ttl time.Duration) error
	// Get returns the value. ErrNotFound if there is none, or its time is over.
	Get(ctx context.Context, key string) ([]byte, error)
	// Delete removes the value, if there is one.
	Delete(ctx context.Context, key string) error
}
